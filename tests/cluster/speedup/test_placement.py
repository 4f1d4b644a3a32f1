"""Tensors on parameter servers: as printed and corrected, every element exactly once."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fieldray_cluster.speedup.placement import Piece, Placement, placed_evenly_corrected, placed_whole


def test_whole_tensors_go_to_the_server_that_holds_least_in_the_order_of_the_list() -> None:
    # 5 -> first; 3 -> second; 4 -> second (3 < 5), now 7; 1 -> first, now 6; 2 -> first (6 < 7), now 8.
    placement = placed_whole([5, 3, 4, 1, 2], servers=2)
    assert [[piece.tensor for piece in held] for held in placement.servers] == [[0, 3, 4], [1, 2]]
    assert placement.loads == (8, 7)
    assert placement.shares == pytest.approx((8 / 15, 7 / 15))


def test_the_first_of_equals_is_taken() -> None:
    assert placed_whole([1, 1, 1], servers=3).loads == (1, 1, 1)
    assert placed_whole([2, 2, 2], servers=2).loads == (4, 2)


def test_one_large_tensor_stays_whole_as_printed_and_is_cut_where_corrected() -> None:
    sizes = [1, 90, 9]
    assert placed_whole(sizes, servers=4).loads == (1, 90, 9, 0)
    even = placed_evenly_corrected(sizes, servers=4)
    assert even.loads == (25, 25, 25, 25)
    assert even.servers[1] == (Piece(tensor=1, start=24, stop=49),)


def test_more_servers_than_elements_leave_some_empty() -> None:
    assert sorted(placed_evenly_corrected([1, 1], servers=5).loads) == [0, 0, 0, 1, 1]
    assert placed_whole([1, 1], servers=5).loads == (1, 1, 0, 0, 0)


@pytest.mark.parametrize("place", [placed_whole, placed_evenly_corrected])
def test_every_element_is_placed_once(place: Callable[..., Placement]) -> None:
    """`Placement` refuses anything else, so building it is the proof; the count says it again."""
    drawn = random.Random(19)
    for _ in range(500):
        sizes = [drawn.randint(1, 400) for _ in range(drawn.randint(1, 30))]
        servers = drawn.randint(1, 12)
        placement = place(sizes, servers=servers)
        cells = [(one.tensor, at) for held in placement.servers for one in held for at in range(one.start, one.stop)]
        assert len(cells) == len(set(cells)) == sum(sizes)
        assert sum(placement.shares) == pytest.approx(1)
        if place is placed_evenly_corrected:
            assert max(placement.loads) - min(placement.loads) <= 1


@pytest.mark.parametrize(
    "servers",
    [
        (),
        ((Piece(tensor=0, start=0, stop=2),),),  # one element is on no server
        ((Piece(tensor=0, start=0, stop=4),),),  # more than there are
        ((Piece(tensor=0, start=0, stop=3),), (Piece(tensor=0, start=2, stop=3),)),  # one on two
        ((Piece(tensor=0, start=0, stop=1), Piece(tensor=0, start=2, stop=3)),),  # a gap
        ((Piece(tensor=0, start=0, stop=3), Piece(tensor=1, start=0, stop=1)),),  # a tensor that is not there
    ],
)
def test_a_placement_that_loses_or_doubles_an_element_does_not_exist(servers: tuple[tuple[Piece, ...], ...]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Placement((3,), servers)


@pytest.mark.parametrize(("sizes", "servers"), [([], 1), ([0], 1), ([3, -1], 2), ([3], 0)])
def test_no_tensors_or_no_servers_is_an_error(sizes: list[int], servers: int) -> None:
    for place in (placed_whole, placed_evenly_corrected):
        with pytest.raises(ValueError, match="need tensors"):
            place(sizes, servers=servers)


def test_a_piece_has_elements() -> None:
    for start, stop in ((3, 3), (-1, 2), (4, 2)):
        with pytest.raises(ValueError, match="no piece"):
            Piece(tensor=0, start=start, stop=stop)
