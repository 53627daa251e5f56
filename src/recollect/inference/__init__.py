"""Who embeds: models behind one small protocol."""
