"""A model card has one part per language; an older card, or one by another maker, is English only."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldray.packs.cards import join_card_languages, split_card_by_language

SHIPPED = sorted((Path(__file__).parents[3] / "models").glob("*/MODEL_CARD.md"))


def test_a_joined_card_is_split_into_its_languages() -> None:
    made = {"en": "# Lungs\n\nText.\n", "uk": "# Легені\n\nТекст.\n", "pt-BR": "# Pulmões\n"}
    card = join_card_languages(made)
    assert card.startswith("# Lungs\n") and "\n<!-- uk -->\n# Легені\n" in card
    assert split_card_by_language(card) == made


@pytest.mark.parametrize(
    "card", ["", "# Card\n", "# A\n\n<!-- a remark -->\n\ntext <!-- uk -->\n", "# A\n<!-- uk --> b\n"]
)
def test_a_card_without_parts_is_english(card: str) -> None:
    assert split_card_by_language(card) == {"en": card}


def test_a_shipped_card_is_split_without_loss() -> None:
    assert len(SHIPPED) > 3
    for path in SHIPPED:
        card = path.read_text(encoding="utf-8")
        assert (
            join_card_languages(split_card_by_language(card)) == card and "\n## " in split_card_by_language(card)["en"]
        )
