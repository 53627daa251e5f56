"""What a text is looked through for before it is kept: secrets, personal data, and orders that nobody may give here."""
