"""Who is to blame for a process that ended: the image, or the computer."""

from __future__ import annotations

from fieldray_cluster.pool import FaultCounts, Piece

ONE = Piece(7, 8)


def failed(suspects: FaultCounts, piece: Piece, *nodes: str) -> Piece:
    for node in nodes:
        piece = suspects.failed(piece, node)
    return piece


def test_an_image_is_to_blame_where_processes_of_two_nodes_ended_over_it() -> None:
    suspects, both = FaultCounts(), ("ward", "attic")
    assert not suspects.is_image_to_blame(failed(suspects, ONE, "ward", "attic"), both, is_last=False)  # twice only
    assert not suspects.is_image_to_blame(failed(suspects, ONE, "ward", "ward", "ward"), both, is_last=True)
    assert suspects.is_image_to_blame(failed(suspects, ONE, "ward", "ward", "attic"), both, is_last=False)


def test_an_image_is_to_blame_where_its_node_has_screened_another_one_since() -> None:
    suspects, both = FaultCounts(), ("ward", "attic")
    suspects.has_done("ward", 100)  # before: it may have gone bad after that
    piece = failed(suspects, ONE, "ward", "ward", "ward")
    assert not suspects.is_image_to_blame(piece, both, is_last=False)
    suspects.has_done("attic", 1)
    assert not suspects.is_image_to_blame(piece, both, is_last=False)
    suspects.has_done("ward", 1)
    assert suspects.is_image_to_blame(piece, both, is_last=False)


def test_where_there_is_one_node_it_has_to_have_worked_or_nothing_else_is_left() -> None:
    suspects = FaultCounts()
    piece = failed(suspects, ONE, "ward", "ward", "ward")
    assert not suspects.is_image_to_blame(piece, ("ward",), is_last=False)
    assert suspects.is_image_to_blame(piece, ("ward",), is_last=True)
    suspects.has_done("ward", 1)
    assert suspects.is_image_to_blame(failed(suspects, ONE, "ward", "ward", "ward"), ("ward",), is_last=False)


def test_a_node_is_to_blame_by_deaths_in_a_row_and_all_its_workers_end_at_once() -> None:
    suspects = FaultCounts()
    suspects.works("ward", workers=2)
    failed(suspects, ONE, *["ward"] * 11)
    assert not suspects.is_node_to_blame("ward")
    failed(suspects, ONE, "ward")
    assert suspects.is_node_to_blame("ward") and suspects.times("ward") == 12 and not suspects.is_node_to_blame("attic")
    suspects.has_done("ward", 1)
    assert not suspects.is_node_to_blame("ward")


def test_what_is_known_of_a_piece_is_known_of_its_halves() -> None:
    suspects = FaultCounts()
    suspects.has_done("ward", 5)
    assert [half.nodes for half in failed(suspects, Piece(0, 4), "ward").halves()] == [(("ward", 5),)] * 2
