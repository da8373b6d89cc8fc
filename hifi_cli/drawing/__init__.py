"""How numbers become a picture: the looks of methods, the style of all figures, and plots of finished runs."""
