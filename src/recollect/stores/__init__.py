"""Store backends behind the protocols of `base`."""
