"""A prompt with many cached tokens: attention gets them one tile at a time, not all at once."""

from vpatch_overlays.probes.bare import expect, settle
from vpatch_overlays.probes.turboquant_layer import Layer, workspace

TILE, CHUNK = 16_384, 512


def main() -> None:
    """Continue a prompt of two tiles and some tokens."""
    settle()
    import vllm.platforms
    from vllm.platforms.interface import PlatformEnum

    workspace()
    layer = Layer(4 * TILE)
    vllm.platforms.current_platform._enum = PlatformEnum.CUDA  # vLLM uses tiles for flash attention on CUDA only
    given, _ = layer.continue_prompt(2 * TILE + 100, CHUNK)
    expect("keys for each call of attention", [TILE, TILE, 100 + CHUNK], given)


if __name__ == "__main__":
    main()
