"""The accepted counts that the requests of a batch read, after some ended and others came and traded rows with them."""

from vpatch_overlays.probes.accepted_counts import DRAFTS, EARLY, LATE, PROMPT, Steps
from vpatch_overlays.probes.bare import expect, settle

LANDINGS = {"before the rows move": EARLY, "while the rows move": 2, "after the rows moved": LATE}
MODES = {"align": "with prefix caching", "none": "without prefix caching"}


def read(mode: str, lands: int) -> dict[str, int]:
    """Let A and B end, and D and F take their rows; as prompts, these trade rows with C and E, which decode."""
    steps, decode = Steps(mode), 1 + DRAFTS
    steps.begin(dict.fromkeys("ABC", PROMPT))
    steps.end(dict.fromkeys("ABC", 1))
    steps.begin(dict.fromkeys("ABC", decode) | {"E": PROMPT}, drafts="ABC")
    steps.end({"A": 3, "B": 2, "C": 4, "E": 1})
    scheduled = {"C": decode, "E": decode, "D": PROMPT, "F": PROMPT}
    return steps.begin(scheduled, ended="AB", drafts="CE", lands=lands)


def main() -> None:
    """Read the counts in both modes, with a copy to the CPU that lands at three moments."""
    settle()
    right = {"C": 4, "D": 1, "E": 1, "F": 1}
    for mode, prefix_caching in MODES.items():
        for when, lands in LANDINGS.items():
            found = dict(sorted(read(mode, lands).items()))
            expect(f"accepted tokens by request, {prefix_caching}, if their copy lands {when}", right, found)


if __name__ == "__main__":
    main()
