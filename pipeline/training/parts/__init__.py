"""Parts that act on a trial beside the gradient: a file each. Importing the package imports none of them."""
