"""One module per tool, each with `call(link, arguments)`; the manifest lists them."""
