"""A recipe's images on a server: copied completely despite failures of the server, then read as local files."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.test_objects import killed_at_random, served
from drawn_data import draw_lungs
from fieldray.errors import UsageProblem
from fieldray_adapt.data.image_set import read_rows, rows_digest
from fieldray_adapt.lungs.masks import find_pairs
from fieldray_adapt.lungs.recipe import LungRecipe, MaskSource
from fieldray_adapt.recipe_actions import check_recipe, image_copy_folders
from fieldray_adapt.recipes.classifier import ClassifierRecipe, with_absolute_paths
from fieldray_adapt.recipes.tables import RecipeDocument
from fieldray_adapt.run import lock_run_folder
from fieldray_cluster.object_copies import CopyResult, copy_objects
from fieldray_cluster.object_server import ObjectServer
from object_servers import REFUSED, Bucket, Server, SshServer, WebServer
from program import Fieldray, write_images
from tiny_recipe import RECIPE as TRAINED
from tiny_recipe import draw

NAMES = [f"{kind}/p{number:02}.png" for number in range(20) for kind in ("normal", "opacity")]
RECIPE = """
run = "run"
pack = {{ id = "drawn" }}
labels = [{{ code = "opacity" }}]
data = [{{ path = "{path}" }}]
"""

LUNG_RECIPE = """
kind = "lung-fields"
pack = { id = "drawn" }
split = { validation_share = 0.3, test_share = 0.3 }
masks = [{ path = "s3://box/data/lungs.csv", where = { use = ["train"] } }]
training = { stages = [{ side = 224, epochs = 1 }] }
"""


@pytest.fixture(params=[Bucket, WebServer, SshServer])
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for found in served(request.param, tmp_path / "user"):
        for name in NAMES:
            found.put(f"in/{name}", f"of {name}".encode())
        yield found


def copied(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_only_what_has_changed_is_copied_again(server: Server, tmp_path: Path) -> None:
    folder, place, expected = tmp_path / "copy" / "in", f"{server.address}/in", {name: f"of {name}" for name in NAMES}
    done = list[tuple[int, int]]()
    assert copy_objects(ObjectServer(place), folder, progress=lambda *each: done.append(each)) == CopyResult(40, 40)
    assert copied(folder) == expected and done[-1] == (40, 40)
    assert copy_objects(ObjectServer(place), folder) == CopyResult(40, 0)
    server.put("in/normal/p03.png", b"as long as before"[:17])
    server.put("in/normal/new.png", b"new")
    server.delete("in/opacity/p04.png")
    (folder / "opacity" / "p05.png").write_text("cut")  # for example by a power failure
    assert copy_objects(ObjectServer(place), folder) == CopyResult(40, 3)
    del expected["opacity/p04.png"]
    assert copied(folder) == expected | {"normal/p03.png": "as long as before", "normal/new.png": "new"}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in", "in.json"]


@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_an_object_that_changes_during_copying_is_reported_and_copied_next_time(server: Bucket, tmp_path: Path) -> None:
    folder, asked = tmp_path / "in", ObjectServer("s3://box/in")
    listed = asked.iterate_objects
    server.faults["in/normal/p07.png"] = REFUSED

    class Changing(ObjectServer):
        def iterate_objects(self) -> Iterator[tuple[str, str]]:
            yield from listed()
            server.put("in/normal/p03.png", b"another")

    with pytest.raises(UsageProblem, match=r"2 objects of s3://box/in were not copied\..* p03\.png: .*has changed"):
        copy_objects(Changing("s3://box/in"), folder)
    assert len(copied(folder)) == 38 and not (tmp_path / "in.json").exists()  # the file that marks a complete copy
    server.faults.clear()
    assert copy_objects(asked, folder) == CopyResult(40, 2)
    assert copied(folder)["normal/p03.png"] == "another" and (tmp_path / "in.json").exists()


@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_a_server_that_is_killed_at_random_costs_no_object(server: Bucket, tmp_path: Path) -> None:
    server.asked.clear()
    is_over, killed = threading.Event(), list[int]()
    kills = threading.Thread(target=killed_at_random, args=(server, 2, is_over, killed))
    kills.start()
    found = copy_objects(ObjectServer("s3://box/in"), tmp_path / "in")
    is_over.set()
    kills.join()
    assert killed and found == CopyResult(40, 40) and copied(tmp_path / "in") == {name: f"of {name}" for name in NAMES}


@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_a_recipe_with_an_address_reads_the_images_of_a_folder(
    server: Bucket, tmp_path: Path, fieldray: Fieldray
) -> None:
    for kind in ("normal", "opacity"):
        for path in write_images(tmp_path / "images" / kind, 3):
            server.put(f"images/{kind}/{path.name}", path.read_bytes())
    recipes = {name: tmp_path / name / "recipe.toml" for name in ("remote", "here")}
    for name, place in (("remote", "s3://box/images"), ("here", str(tmp_path / "images"))):
        recipes[name].parent.mkdir()
        recipes[name].write_text(RECIPE.format(path=place))
    with pytest.raises(UsageProblem, match="First fetch these images with: fieldray adapt fetch"):
        check_recipe(recipes["remote"])
    fieldray("adapt", "fetch", recipes["remote"]).ends_with(0).prints("s3://box/images: 6 objects, 6 of them new")
    documents = {name: RecipeDocument.read(path) for name, path in recipes.items()}
    assert image_copy_folders(documents["here"]) == {}
    assert image_copy_folders(documents["remote"]) == {"s3://box/images": tmp_path / "remote/run/objects/s3/box/images"}
    digests = set()
    for name, document in documents.items():
        recipe = with_absolute_paths(document.parse_as(ClassifierRecipe), document.path)
        rows = read_rows(recipe.data, folder=tmp_path / name)
        assert len(rows) == 6 and all(row.sha256 for row in rows)
        digests.add(rows_digest(rows))
    assert len(digests) == 1  # digests of labels and contents, on which all later steps depend


@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_images_of_another_hospital_and_images_without_a_chest_may_be_on_a_server(
    server: Bucket, tmp_path: Path, fieldray: Fieldray
) -> None:
    recipe, copies = tmp_path / "recipe.toml", tmp_path / "run/objects/s3/box"
    sources = {name: f'{{ path = "s3://box/{name}" }}' for name in ("elsewhere", "ood_images")}
    values = ", ".join(f"{name} = {source}" for name, source in sources.items())
    recipe.write_text(RECIPE.format(path="images") + f"evaluation = {{ {values} }}")
    for name in sources:
        server.put(f"{name}/normal/1.png", b"an image")
    with lock_run_folder(tmp_path / "run"):
        fieldray("adapt", "fetch", recipe).ends_with(2).complains("Another run is using")
    fieldray("adapt", "fetch", recipe).ends_with(0).prints("s3://box/elsewhere: 1 objects, 1 of them new")
    evaluation = with_absolute_paths(RecipeDocument.read(recipe).parse_as(ClassifierRecipe), recipe).evaluation
    for name in sources:
        assert getattr(evaluation, name).path == copies / name
        assert copied(copies / name) == {"normal/1.png": "an image"}


# ---- training from a server


class ChangingBucket(Bucket):
    """A bucket whose last image changes when the first object is read."""

    changed = b""

    def __call__(self, environment: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self.changed and "/training/" in environment["PATH_INFO"]:
            self.put("training/99.png", self.changed)
            self.changed = b""
        return super().__call__(environment, start_response)


def failing(bucket: Bucket, is_over: threading.Event, outages: list[int]) -> None:
    """Kill the server after 20 requests, restart it after three seconds, and then kill it at random moments."""
    until = len(bucket.asked) + 20
    while len(bucket.asked) < until:
        if is_over.wait(0.001):
            return
    bucket.kill()
    outages.append(until)
    is_over.wait(3)
    bucket.start()
    killed_at_random(bucket, 3, is_over, outages)


def recipes_for(bucket: Bucket, folder: Path) -> dict[str, Path]:
    """Write a recipe with images in the bucket, and one with the same images in a local folder."""
    found = {name: folder / name / "recipe.toml" for name in ("remote", "here")}
    quick = TRAINED.replace("epochs = 4", "epochs = 1").replace("images_per_epoch = 128", "images_per_epoch = 32")
    for name, place in (("remote", "s3://box/training/"), ("here", "")):
        found[name].parent.mkdir()
        text = quick.replace('path = "c', f'path = "{place}c')
        found[name].write_text(text, encoding="utf-8")
    draw(found["here"].parent, "clean", images=60, first=0)
    draw(found["here"].parent, "confounded", images=40, first=60)
    for path in found["here"].parent.iterdir():
        if path != found["here"]:
            bucket.put(f"training/{path.name}", path.read_bytes())
    return found


def trained(recipe: Path) -> tuple[bytes, list[float]]:
    """Return the weights of a training, and the losses of its epochs."""
    history = json.loads((recipe.parent / "run/train/history.json").read_bytes())
    return (recipe.parent / "run/train/weights.npz").read_bytes(), [row["loss"] for row in history]


@pytest.mark.adapt
@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_a_training_from_a_server_that_fails_gets_the_weights_of_a_folder(
    server: Bucket, tmp_path: Path, fieldray: Fieldray
) -> None:
    recipes = recipes_for(server, tmp_path)
    is_over, outages = threading.Event(), list[int]()
    faults = threading.Thread(target=failing, args=(server, is_over, outages))
    faults.start()
    remote = fieldray("adapt", "train", recipes["remote"], "--fetch").ends_with(0)
    is_over.set()
    faults.join()
    assert len(outages) > 2
    remote.prints("s3://box/training: 102 objects, 102 of them new")
    fieldray("adapt", "train", recipes["here"]).ends_with(0)
    assert trained(recipes["remote"]) == trained(recipes["here"])


@pytest.mark.adapt
@pytest.mark.parametrize("server", [ChangingBucket], indirect=True)
def test_an_image_that_changes_between_list_and_copy_is_never_trained_on(
    server: ChangingBucket, tmp_path: Path, fieldray: Fieldray
) -> None:
    recipes = recipes_for(server, tmp_path)
    changed = recipes["here"].parent / "99.png"
    changed.write_bytes((recipes["here"].parent / "97.png").read_bytes() + b" ")
    server.changed = changed.read_bytes()
    fieldray("adapt", "data", recipes["remote"], "--fetch").ends_with(2).complains("99.png", "has changed")
    assert not (tmp_path / "remote/run/data").exists()
    fieldray("adapt", "data", recipes["remote"], "--fetch").ends_with(0).prints("102 objects, 1 of them new")
    fieldray("adapt", "data", recipes["here"]).ends_with(0)
    facts = [json.loads((recipe.parent / "run/data/facts.json").read_bytes()) for recipe in recipes.values()]
    assert facts[0] == facts[1]


@pytest.mark.adapt
@pytest.mark.parametrize("server", [Bucket], indirect=True)
def test_images_and_masks_of_a_lung_field_recipe_may_be_on_a_server(
    server: Bucket, tmp_path: Path, fieldray: Fieldray
) -> None:
    draw_lungs(tmp_path, learnt=12, evaluated=2, side=32)
    data = tmp_path / "shared" / "data"
    for path in data.rglob("*"):
        if path.is_file():
            server.put(f"data/{path.relative_to(data).as_posix()}", path.read_bytes())
    recipe = tmp_path / "lungs.toml"
    recipe.write_text(LUNG_RECIPE)
    with pytest.raises(UsageProblem, match="First fetch these images with: fieldray adapt fetch"):
        check_recipe(recipe)
    fieldray("adapt", "fetch", recipe).ends_with(0).prints("s3://box/data: ")
    assert check_recipe(recipe) == []
    masks = with_absolute_paths(RecipeDocument.read(recipe).parse_as(LungRecipe), recipe).masks
    copy = tmp_path / "run/objects/s3/box/data"
    pairs, problems = find_pairs(masks[0])
    assert len(pairs) == 12 and not problems and all(copy in pair.mask_path.parents for pair in pairs)
    folders = MaskSource(path=Path("s3://box/images"), masks=Path("s3://box/masks"), layout="folders")
    assert folders.server_addresses == ("s3://box/images", "s3://box/masks")
