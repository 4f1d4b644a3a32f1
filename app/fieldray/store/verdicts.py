"""How verdicts move between the rows of the store, as statements: a verdict is a person's work and is never lost.

A verdict lies beside the row that was judged. The same image gets another row when it is renamed and whenever it is
screened again in a new run; while the result is the same, the verdict is copied to that row. All copies have the time
of the original. Which one is the newest, their numbers say: the clock of a computer may jump.
"""

from __future__ import annotations

from typing import Final

_COPY: Final = """
    INSERT OR IGNORE INTO verdicts (result_id, result_hash, choice, note, given_s, content_sha256, category, score)
"""

# Within a run: to the same bytes with the same outcome, and to a row that has no verdict of its own.
TO_MOVED: Final = f"""{_COPY}
    SELECT moved.id, given.result_hash, choice, note, given_s, given.content_sha256, given.category, given.score
    FROM results AS gone JOIN verdicts AS given ON given.result_id = gone.id AND given.result_hash = gone.result_hash
    JOIN results AS moved ON moved.run_id = gone.run_id AND moved.result_hash = gone.result_hash
    WHERE gone.run_id = ? AND gone.absent_s IS NOT NULL AND moved.absent_s IS NULL AND moved.content_sha256 != x''
"""

# From other runs to a row: of the same image, of the same file by another name, or of the same bytes whose places are
# empty now. Two files with the same bytes that are both there stay two images, each with a verdict of its own. Where
# the result was lost in a damaged store, its place counts as empty, and its run is NULL here.
TO_NEW_RUN: Final = f"""{_COPY}
    SELECT :row_id, verdicts.result_hash, choice, note, given_s, verdicts.content_sha256, verdicts.category,
           verdicts.score
    FROM verdicts LEFT JOIN results ON results.id = result_id
    WHERE verdicts.result_hash = :result_hash AND verdicts.content_sha256 != x'' AND run_id IS NOT :run_id
          AND (image_key = :image_key OR NOT EXISTS (
               SELECT 1 FROM verdicts AS same JOIN results AS judged ON judged.id = same.result_id
               WHERE same.result_hash = :result_hash AND same.given_s = verdicts.given_s
                     AND is_another(judged.image_key, :image_key)))
    ORDER BY image_key IS :image_key DESC, verdicts.id DESC LIMIT 1
"""

# From a row to those of the same image and result in later runs that have not ended: they may have come by it before.
_LATER: Final = """
    FROM verdicts JOIN results ON results.id = result_id JOIN runs ON runs.id > results.run_id AND ended_s IS NULL
    JOIN results AS later ON later.run_id = runs.id AND later.image_key = results.image_key
                          AND later.result_hash = verdicts.result_hash
    WHERE verdicts.result_id = :row_id AND verdicts.result_hash = :result_hash AND verdicts.content_sha256 != x''
"""
TO_LATER_RUNS: Final = f"""{_COPY}
    SELECT later.id, verdicts.result_hash, choice, note, given_s, verdicts.content_sha256, verdicts.category,
           verdicts.score {_LATER}
"""
# Before another one is given there: its copies go, and not what a person said in such a run.
TAKE_BACK: Final = f"""
    DELETE FROM verdicts
    WHERE result_hash = :result_hash AND (result_id, given_s) IN (SELECT later.id, given_s {_LATER})
"""

# With all copies of it, in whatever run, and all that were given on the image before, or the next run would bring one
# back. One that was given after it in another run is not what is withdrawn here.
WITHDRAW: Final = """
    DELETE FROM verdicts WHERE result_hash = :result_hash AND EXISTS (
        SELECT 1 FROM verdicts AS given WHERE given.result_id = :row_id AND given.result_hash = :result_hash AND (
            given.given_s = verdicts.given_s
            OR verdicts.id < given.id AND EXISTS (
               SELECT 1 FROM results AS judged JOIN results AS mine ON mine.image_key = judged.image_key
               WHERE judged.id = verdicts.result_id AND mine.id = :row_id)))
"""

# Those on no result that is present in the run: on what its rows held before, or on what its images gave in other runs.
EARLIER: Final = """
    SELECT verdicts.*, image_key FROM verdicts JOIN results ON results.id = result_id
    WHERE run_id = :run_id AND (verdicts.result_hash != results.result_hash OR absent_s IS NOT NULL)
       OR run_id != :run_id AND EXISTS (
          SELECT 1 FROM results AS mine WHERE mine.run_id = :run_id AND mine.image_key = results.image_key
          AND mine.absent_s IS NULL AND mine.result_hash != verdicts.result_hash
          AND NOT EXISTS (SELECT 1 FROM verdicts AS own
                          WHERE own.result_id = mine.id AND own.result_hash = verdicts.result_hash))
    GROUP BY image_key, verdicts.result_hash, choice, note, given_s ORDER BY verdicts.id
"""
