"""A list of layers to skip that names a kind of layer, next to the first and last layers that TurboQuant skips."""

from vpatch_overlays.probes.bare import DENSE, engine_config, expect, settle

WANTED = ["0", "1", "3", "6", "7", "sliding_window"]


def main() -> None:
    """Make a configuration with such a list."""
    settle()
    try:
        config = engine_config(DENSE, kv_cache_dtype_skip_layers=["sliding_window", "3"])
    except ValueError as error:
        raise AssertionError(f"the name of a kind of layer was to be taken: {error}") from None
    expect("layers to skip", WANTED, config.cache_config.kv_cache_dtype_skip_layers)


if __name__ == "__main__":
    main()
