"""Every command and how it is carried out."""
