"""Rights of a login: from the catalogues of a server to what `check` says of each."""
