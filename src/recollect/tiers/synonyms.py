"""Words that may stand for one another wherever they are met: spellings, short forms and plain synonyms of English."""

from __future__ import annotations

from collections.abc import Mapping

# Each line has the forms of one word, and those of a word that may take its place. What only mostly means the same
# (like and love, small and little) is not here, nor what means the same only to some (licence and license).
_PAIRS = """
    colour/color colours/colors coloured/colored favour/favor favours/favors favourite/favorite favourites/favorites
    behaviour/behavior behaviours/behaviors flavour/flavor flavours/flavors honour/honor humour/humor labour/labor
    neighbour/neighbor neighbours/neighbors neighbourhood/neighborhood harbour/harbor rumour/rumor rumours/rumors
    organise/organize organises/organizes organised/organized organising/organizing organisation/organization
    organisations/organizations realise/realize realises/realizes realised/realized realising/realizing
    recognise/recognize recognises/recognizes recognised/recognized recognising/recognizing
    apologise/apologize apologises/apologizes apologised/apologized apologising/apologizing
    prioritise/prioritize prioritises/prioritizes prioritised/prioritized prioritising/prioritizing
    optimise/optimize optimises/optimizes optimised/optimized optimising/optimizing optimisation/optimization
    summarise/summarize summarises/summarizes summarised/summarized summarising/summarizing
    analyse/analyze analyses/analyzes analysed/analyzed analysing/analyzing
    customise/customize customises/customizes customised/customized customising/customizing
    minimise/minimize minimises/minimizes minimised/minimized maximise/maximize maximises/maximizes
    specialise/specialize specialises/specializes specialised/specialized normalise/normalize normalised/normalized
    finalise/finalize finalises/finalizes finalised/finalized authorise/authorize authorised/authorized
    memorise/memorize memorised/memorized visualise/visualize visualised/visualized
    centre/center centres/centers theatre/theater theatres/theaters fibre/fiber
    travelled/traveled travelling/traveling traveller/traveler travellers/travelers
    cancelled/canceled cancelling/canceling labelled/labeled labelling/labeling modelled/modeled modelling/modeling
    grey/gray catalogue/catalog catalogues/catalogs judgement/judgment jewellery/jewelry aluminium/aluminum
    pyjamas/pajamas ageing/aging tyre/tire tyres/tires enrol/enroll fulfil/fulfill sceptical/skeptical
    practise/practice practises/practices practised/practiced practising/practicing defence/defense
    learnt/learned spelt/spelled burnt/burned

    kilometre/km kilometres/km kilometer/km kilometers/km metre/m metres/m meter/m meters/m
    centimetre/cm centimetres/cm centimeter/cm centimeters/cm millimetre/mm millimetres/mm millimeter/mm millimeters/mm
    kilogram/kg kilograms/kg kgs/kg gram/g grams/g litre/l litres/l liter/l liters/l percent/%
    mins/minutes hrs/hours secs/seconds
    jan/january feb/february aug/august sept/september oct/october nov/november dec/december
    tues/tuesday thurs/thursday fri/friday

    purchase/buy purchases/buys purchased/bought purchasing/buying
    begin/start begins/starts began/started beginning/starting
    require/need requires/needs
    assist/help assists/helps assisted/helped assisting/helping
    repair/fix repairs/fixes repaired/fixed repairing/fixing
    reside/live resides/lives resided/lived residing/living
    apartment/flat apartments/flats physician/doctor physicians/doctors attorney/lawyer attorneys/lawyers
    film/movie films/movies automobile/car automobiles/cars photograph/photo photographs/photos
    telephone/phone telephones/phones vacation/holiday vacations/holidays
    refrigerator/fridge refrigerators/fridges aeroplane/airplane aeroplanes/airplanes
"""

SAME: Mapping[str, str] = dict(tuple(pair.split("/")) for pair in _PAIRS.split())  # type: ignore[misc]
"""A word, and the one that it counts as."""

TOGETHER: Mapping[tuple[str, str], str] = {
    ("e", "mail"): "email",
    ("e", "mails"): "emails",
    ("web", "site"): "website",
    ("web", "sites"): "websites",
    ("per", "cent"): "%",
    ("wi", "fi"): "wifi",
}
"""What is written as two words or as one."""

NUMBERS: Mapping[str, str] = {
    word: str(number)
    for number, word in enumerate("two three four five six seven eight nine ten eleven twelve".split(), 2)
} | {
    "first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th",
    "sixth": "6th", "seventh": "7th", "eighth": "8th", "ninth": "9th", "tenth": "10th",
}  # fmt: skip
"""Numbers that are written as words as often as not. `One` is none of them: `no one` is not `no. 1`."""
