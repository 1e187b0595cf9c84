"""Labels for routers, and the training of routers on them."""
