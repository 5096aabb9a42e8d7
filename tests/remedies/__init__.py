"""Every remedy that an error prints is carried out, from the fault to a good end."""
