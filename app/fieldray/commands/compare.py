"""`fieldray compare`: overlay a prior image on the current image and list the differences."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

from fieldray.commands.console import Console, add_command, parse_path_option, parse_text_option
from fieldray.commands.options import write_json
from fieldray.settings import load_settings

if TYPE_CHECKING:
    from fieldray.pipeline.compare import ComparedPair


def register_commands(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command `compare` and its options."""
    parser = add_command(
        commands,
        "compare",
        run=run,
        description="Align a prior chest X-ray of a patient with the current one, and show the differences beyond "
        "the noise. The command shows differences of two images, not a course of disease.",
        epilog="Exit code: 0 the pair was compared, or refused with a reason; 1 an image could not be read; "
        "2 wrong usage; 3 the lung-field pack is missing; 130 cancelled. "
        "Research use only. Not for diagnostic use.",
    )
    parser.add_argument("prior", type=parse_path_option, metavar="PRIOR", help="the earlier image")
    parser.add_argument("current", type=parse_path_option, metavar="CURRENT", help="the later image")
    parser.add_argument(
        "--out",
        type=parse_path_option,
        metavar="DIR",
        required=True,
        help="write the warped prior, the overlay and the displacement to this folder (nothing is written for a "
        "refused pair)",
    )
    parser.add_argument(
        "--json",
        type=parse_text_option,
        metavar="FILE|-",
        help="write the figures as one JSON object; - prints the object",
    )
    parser.set_defaults(json_kind="comparison")


def run(options: argparse.Namespace, console: Console) -> int:
    """Run `fieldray compare`. Returns the exit code.

    Raises UsageProblem, PackProblem, StorageProblem, EnvironmentProblem.
    """
    console.is_output_for_program = options.json == "-"
    from fieldray.pipeline.compare import find_single_image, system_comparer_factory
    from fieldray.reports.images import pair_comparison_as_json, require_writable_pair_files, write_comparison

    inputs = (options.prior, options.current)
    require_writable_pair_files(options.out, inputs=inputs)
    settings, _ = load_settings()
    with contextlib.ExitStack() as ends:
        comparer = system_comparer_factory(settings)(ends)
        prior, current = (find_single_image(path, workers=comparer.workers) for path in inputs)
        pair = comparer.compare(prior, current)
    written = write_comparison(options.out, pair.comparison, inputs=inputs)
    _print(pair, console)
    console.print_lines(f"Written: {path}" for path in written)
    text = pair_comparison_as_json(pair.comparison, warnings=() if pair.is_unreadable else pair.warnings)
    write_json(options.json, text, console, kind="comparison", inputs=inputs)
    return 1 if pair.is_unreadable else 0


def _print(pair: ComparedPair, console: Console) -> None:
    """Print the result of comparing two images, in sentences."""
    from fieldray.reports.images import pair_comparison_notice

    comparison, print_line = pair.comparison, console.print_line
    console.print_lines(doubt.text for doubt in (() if pair.is_unreadable else pair.warnings))
    if comparison.problem:
        names = {"prior": "The prior image: ", "current": "The current image: ", "both": ""}
        print_line(f"The images are not comparable. {names[comparison.problem.image]}{comparison.problem.reason.text}")
    alignment, aligned = comparison.alignment, comparison.aligned_pair
    if alignment and aligned:
        similar = f"{alignment.similarity_before:.2f} before alignment, {alignment.similarity_after:.2f} after"
        print_line(f"The images are comparable. Similarity inside the lungs: {similar}.")
        print_line(
            f"Matching points: {alignment.kept_match_count} accepted, {alignment.rejected_match_count} rejected."
        )
        print_line(f"Regions that differ by more than the noise: {len(aligned.regions)}")
        for region in aligned.regions:
            box, what = region.box, "denser" if region.is_denser else "less dense"
            where = f"left {box.left:.0f}, top {box.top:.0f}, {box.width:.0f} x {box.height:.0f}"
            print_line(f"  {what}, {abs(region.strength):.1f} times the noise: {where} px of 512 x 512 px")
    print_line(pair_comparison_notice())
