"""Which capitalised words are a place to live in: cities and countries by name, and what is lived in only in jest."""

from __future__ import annotations

_COUNTRIES = frozenset(
    one.strip()
    for one in """
    afghanistan, albania, algeria, argentina, armenia, australia, austria, bangladesh, belarus, belgium, bolivia,
    brazil, bulgaria, cambodia, cameroon, canada, chile, china, colombia, costa rica, croatia, cuba, cyprus, czechia,
    czech republic, denmark, ecuador, egypt, england, estonia, ethiopia, finland, france, georgia, germany, ghana,
    great britain, greece, holland, hungary, iceland, india, indonesia, iran, iraq, ireland, israel, italy, jamaica,
    japan, jordan, kenya, kosovo, kuwait, latvia, lebanon, lithuania, luxembourg, malaysia, malta, mexico, moldova,
    mongolia, morocco, nepal, netherlands, new zealand, nigeria, north macedonia, northern ireland, norway, pakistan,
    peru, philippines, poland, portugal, qatar, romania, russia, saudi arabia, scotland, senegal, serbia, singapore,
    slovakia, slovenia, south africa, south korea, spain, sri lanka, sudan, sweden, switzerland, syria, taiwan,
    tanzania, thailand, tunisia, turkey, uganda, uk, ukraine, united arab emirates, united kingdom, united states,
    uruguay, us, usa, venezuela, vietnam, wales, zambia, zimbabwe, europe, asia, africa, south america, bavaria,
    california, texas, florida, catalonia, tuscany, provence, ontario, quebec, brittany, saxony
    """.replace("\n", " ").split(",")
)

# "I moved to Linux" has the shape of "I moved to Porto": without more to go by, only a name from here is a home.
_CITIES = frozenset(
    one.strip()
    for one in """
    aachen, aarhus, abuja, accra, adelaide, amsterdam, ankara, antwerp, athens, atlanta, auckland, austin, baltimore,
    bangalore, bangkok, barcelona, basel, bath, beijing, beirut, belfast, belgrade, bergen, berlin, bern, bilbao,
    birmingham, bogota, bogotá, bologna, bonn, bordeaux, boston, braga, bratislava, bremen, brighton, brisbane, bristol,
    brno, brussels, bucharest, budapest, buenos aires, cairo, calgary, cambridge, cape town, cardiff, charlotte,
    chennai, chicago, coimbra, cologne, copenhagen, cork, dakar, dallas, damascus, delft, delhi, denver, detroit, dhaka,
    doha, dortmund, dresden, dubai, dublin, dundee, düsseldorf, dusseldorf, edinburgh, eindhoven, essen, faro, florence,
    frankfurt, freiburg, galway, gdansk, geneva, genoa, ghent, glasgow, gothenburg, granada, graz, grenoble, groningen,
    hamburg, hanoi, hanover, havana, heidelberg, helsinki, hong kong, honolulu, houston, innsbruck, istanbul, izmir,
    jakarta, jena, jerusalem, johannesburg, karachi, karlsruhe, kathmandu, kiel, kigali, kraków, krakow, kuala lumpur,
    kyiv, kyoto, lagos, lausanne, leeds, leiden, leipzig, lille, lima, linz, lisbon, liverpool, ljubljana, london,
    los angeles, lucerne, lyon, madrid, malaga, málaga, malmö, malmo, manchester, manila, mannheim, marrakesh,
    marseille, melbourne, memphis, mexico city, miami, milan, minneapolis, minsk, montevideo, montpellier, montreal,
    moscow, mumbai, munich, nagoya, nairobi, nantes, naples, new delhi, new orleans, new york, new york city, newcastle,
    nuremberg, nice, odense, osaka, oslo, ottawa, oxford, palermo, paris, perth, philadelphia, phoenix, pisa,
    pittsburgh, porto, portland, potsdam, prague, reykjavik, riga, rio de janeiro, rome, rotterdam, salzburg,
    san diego, san francisco, san jose, santiago, são paulo, sao paulo, sapporo, sarajevo, seattle, seoul, seville,
    shanghai, sheffield, shenzhen, sintra, skopje, sofia, southampton, split, stockholm, strasbourg, stuttgart, sydney,
    taipei, tallinn, tampere, tbilisi, tehran, tel aviv, the hague, thessaloniki, tokyo, toronto, toulouse, trieste,
    trondheim, tunis, turin, turku, utrecht, valencia, vancouver, venice, verona, vienna, vilnius, warsaw,
    washington, wellington, winnipeg, wroclaw, wrocław, york, zagreb, zurich, zürich
    """.replace("\n", " ").split(",")
)

# People live in their tools, in hope and in the past; they move to a team, a browser or a Monday.
_NO_HOMES = frozenset(
    """
    access airtable android angular asana aws azure bash bitbucket c chrome christ claude clojure cloudflare confluence
    cursor css cuda debian denial discord django docker dropbox edge elixir emacs engineering evernote excel facebook
    fear fedora figma finance firebase firefox fish flask flutter gcp git github gitlab gmail go god golang google hdmi
    heaven hell heroku hope hr html instagram intellij ios iphone java javascript jenkins jesus jira kotlin kubernetes
    lambda laravel latex legal linear linux mac macos magento mariadb marketing mastodon matlab mongo mongodb mysql
    neovim netlify nix node notion numpy obsidian office opera operations oracle outlook pandas pascal perl php pixel
    plan postgres postgresql powershell powerpoint product pycharm python pytorch rails react redis research ruby rust
    safari sales salesforce scala sharepoint signal sketch slack spotify spring sql sqlite stage step strategy sublime
    supabase support svelte swift tableau tailwind teams telegram tensorflow terraform thunderbird trello twitter
    typescript ubuntu unix vercel vim visual vs vscode vue wayland web whatsapp windows wordpress xcode xml yaml youtube
    zed zoom zsh team phase version option chapter section page level room building gate terminal seat row table column
    tab slot group class grade track lane project sprint branch release desk floor channel department mode
    monday tuesday wednesday thursday friday saturday sunday january february april june july august september october
    november december
    """.split()
)


def is_country(name: str) -> bool:
    """Whether a place holds cities: somebody may live in Lisbon and in Portugal."""
    return _told(name) in _COUNTRIES


def is_place(name: str) -> bool:
    """Whether a name is known to be a place."""
    return _told(name) in _CITIES or is_country(name)


def may_be_place(name: str) -> bool:
    """Whether a capitalised name can be a home, for all that is known about it."""
    words = _told(name).split()
    return is_place(name) or (bool(words) and words[0].partition("'")[0] not in _NO_HOMES and not name[-1].isdigit())


def _told(name: str) -> str:
    lowered = name.lower().strip(" .")
    return lowered if lowered == "the hague" else lowered.removeprefix("the ")
