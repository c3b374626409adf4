"""The stages of a trial, one file each; `pipeline.stages.graph` declares them."""
