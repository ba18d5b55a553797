"""An overlay that another distribution ships."""
