"""One module for each provider of models, around its official client."""
