"""`fieldray constancy`: whether the packs still give on this computer what they gave when they were accepted."""

from __future__ import annotations

import argparse
from typing import Any

from fieldray.commands.console import Console, add_command
from fieldray.commands.options import LACKS_A_YES, add_pack_options, drives_with_packs, load_pack, pack_library
from fieldray.reasons import reason


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    """Add the command and its options."""
    parser = add_command(
        commands,
        "constancy",
        run=run,
        description="Screen images that come with the program, and compare with the answers expected of each pack.",
        epilog="Exit code: 0 every check passed; 1 one failed, is due or could not be made.",
    )
    add_pack_options(parser, default="every pack that can screen here")
    parser.add_argument("--status", action="store_true", help="say what came out last and when the next check is due")


def run(options: argparse.Namespace, console: Console) -> int:
    """Check the packs, or say how it stands with them; the exit code. Raises PackProblem, StorageProblem."""
    from fieldray.paths import user_data
    from fieldray.pipeline.constancy import ConstancyRecords, check
    from fieldray.pipeline.session import Session
    from fieldray.settings import load

    library, drives, records = pack_library(), drives_with_packs(), ConstancyRecords(user_data())
    found = [] if options.pack else [one for one in library.available(drives) if one.kind == "classifier"]
    names = [options.pack] if options.pack else [str(one.folder) for one in found if one.problem is None]
    left_out = [(one.pack_name, one.problem) for one in found if one.problem]
    console.print_lines(reason("constancy_not_run", device=pack, detail=why.text).text for pack, why in left_out)
    if not (names or left_out):
        console.print_error(reason("no_pack").text)
    is_well = bool(names) and all(why.code in LACKS_A_YES for _, why in left_out)  # what nobody uses is no fault
    for name in names:
        model = load_pack(library, name, options, drives=drives)
        if options.status:
            said = records.standing(model)
        else:
            with Session(load()[0], lambda _: None) as session:
                session.use_pack(model)
                console.bar(model.pack_name)
                said = check(session, records)
        console.print_lines(why.text for why in said)
        codes = {why.code for why in said} - {"constancy_not_run"}
        is_well &= set() < codes <= {"constancy_passed", "constancy_first"}
    return 0 if is_well else 1
