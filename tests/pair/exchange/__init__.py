"""Both halves of an exchange against each other, without network or Spark."""
