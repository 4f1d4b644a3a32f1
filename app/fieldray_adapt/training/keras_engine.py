"""Train networks with Keras 3, and convert specifications to Keras models.

Keras uses TensorFlow, unless the environment variable KERAS_BACKEND names another library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fieldray_adapt.networks.specification import INPUT_NAME, Layer, Shape, Specification, Weights, layer_shapes
from fieldray_adapt.training.engine_interface import (
    BATCH_NORM_STATISTIC_SUFFIXES,
    Batch,
    EngineSettings,
    section_mean_matrix,
)

_NORMALISED_PARTS = ("gamma", "beta", "mean", "variance")


def build_network(specification: Specification, *, outputs: Sequence[str]) -> Any:
    """Return the keras.Model of a specification.

    The model's input is (n, height, width, channels) float32 in 0..1. `outputs` are names of roles or layers. A model
    with one output returns a tensor, a model with several outputs a list of tensors.
    """
    import keras

    sizes = layer_shapes(specification)
    values = {INPUT_NAME: keras.Input(sizes[INPUT_NAME], name=INPUT_NAME)}
    for layer in specification.layers:
        tensors = [values[name] for name in layer.inputs]
        values[layer.name] = _apply(layer, tensors, sizes, epsilon=specification.epsilon)
    wanted = [values[specification.outputs.get(name, name)] for name in outputs]
    return keras.Model(values[INPUT_NAME], wanted if len(wanted) > 1 else wanted[0], name=specification.name)


def _apply(layer: Layer, tensors: list[Any], sizes: Mapping[str, Shape], *, epsilon: float) -> Any:
    """Apply a layer to Keras tensors: operation, batch normalisation if wanted, activation. Returns a tensor."""
    from keras import layers

    value = tensors[0]
    if layer.kind != "activation":
        value = _keras_layer(layer, sizes)(tensors if len(tensors) > 1 else value)
    if layer.kind == "average_all":
        value = layers.Reshape((value.shape[-1],), name=layer.name)(value)
    if layer.batch_norm:
        value = layers.BatchNormalization(epsilon=epsilon, momentum=0.9, name=f"{layer.name}_bn")(value)
    if layer.activation == "relu6":
        return layers.ReLU(max_value=6.0, name=f"{layer.name}_activation")(value)
    if layer.activation != "none":
        return layers.Activation(
            layer.activation, dtype="float32" if layer.kind == "activation" else None, name=f"{layer.name}_activation"
        )(value)
    return value


def _keras_layer(layer: Layer, sizes: Mapping[str, Shape]) -> Any:
    from keras import layers

    windowed = {"strides": layer.stride, "padding": "same", "name": layer.name}
    biased = {"use_bias": not layer.batch_norm}
    makers: dict[str, Callable[[], Any]] = {
        "conv": lambda: layers.Conv2D(sizes[layer.name][-1], layer.kernel, **windowed, **biased),
        "depthwise": lambda: layers.DepthwiseConv2D(layer.kernel, **windowed, **biased),
        "dense": lambda: layers.Dense(sizes[layer.name][0], name=layer.name),
        "max_pool": lambda: layers.MaxPooling2D(layer.kernel, **windowed),
        "average_all": lambda: layers.AveragePooling2D(sizes[layer.inputs[0]][:2], name=f"{layer.name}_pool"),
        "add": lambda: layers.Add(name=layer.name),
        "concat": lambda: layers.Concatenate(name=layer.name),
        "upsample": lambda: layers.UpSampling2D(layer.stride, interpolation="bilinear", name=layer.name),
        "flatten": lambda: layers.Flatten(name=layer.name),
        "dropout": lambda: layers.Dropout(layer.rate, name=layer.name),
    }
    return makers[layer.kind]()


def layer_output_function(
    specification: Specification, weights: Mapping[str, NDArray[np.float32]], names: Sequence[str]
) -> Callable[[Batch], dict[str, NDArray[np.float32]]]:
    """Return a function that runs a network on images and returns the outputs of the layers `names`, by name.

    The argument of the function is images (n, height, width, channels) float32 in 0..1.
    """
    import keras

    keras.config.set_dtype_policy("float32")  # an earlier training may have set bfloat16
    model = build_network(specification, outputs=names)
    set_weights(model, weights)

    def read(images: Batch) -> dict[str, NDArray[np.float32]]:
        values = model.predict_on_batch(images)
        return {
            name: np.asarray(value) for name, value in zip(names, values if len(names) > 1 else [values], strict=True)
        }

    return read


def set_weights(model: Any, weights: Mapping[str, NDArray[np.float32]]) -> None:
    """Copy weights into a model that `build_network` made. Raises KeyError or ValueError if the weights do not fit."""
    for layer, parts in _weighted(model):
        layer.set_weights([weights[part] for part in parts])


def compile_model(model: Any, optimiser: Any, **options: Any) -> None:
    """Compile a Keras model with an optimiser. `options` are further arguments of `Model.compile`.

    The loss trackers are created at once. Otherwise Keras creates the trackers in the first step, and TensorFlow
    compiles the step twice.
    """
    from keras import ops

    model.compile(optimiser, **options)
    blanks = [ops.zeros((1, *output.shape[1:]), output.dtype) for output in model.outputs]
    model.compute_loss(y=blanks if blanks[1:] else blanks[0], y_pred=blanks if blanks[1:] else blanks[0])


def get_weights(model: Any) -> Weights:
    """Return the weights of a Keras model by name, such as "conv1/kernel"."""
    return {
        part: np.asarray(array, np.float32)
        for layer, parts in _weighted(model)
        for part, array in zip(parts, layer.get_weights(), strict=True)
    }


def _weighted(model: Any) -> list[tuple[Any, list[str]]]:
    """Return each layer of a Keras model that has weights, with the names of the layer's arrays in Keras's order."""
    found = []
    for layer in model.layers:
        if layer.name.endswith("_bn"):
            found.append((layer, [f"{layer.name[:-3]}/{part}" for part in _NORMALISED_PARTS]))
        elif layer.weights:
            parts = ("kernel", "bias")[: len(layer.weights)]
            found.append((layer, [f"{layer.name}/{part}" for part in parts]))
    return found


class KerasGradients:
    """Computes gradients of a compiled Keras model on TensorFlow, by weight name.

    Gradients are computed for the weights of `model`. `trained` is the compiled model whose losses are used; None
    for `model` itself.
    """

    def __init__(self, model: Any, *, trained: Any = None) -> None:
        self._model = model if trained is None else trained
        self._variables: dict[str, Any] = {
            part: variable
            for layer, parts in _weighted(model)
            if layer.trainable
            for part, variable in zip(parts, layer.weights, strict=True)
        }
        self._trained = [name for name in self._variables if not name.endswith(BATCH_NORM_STATISTIC_SUFFIXES)]
        self._take: Any = None

    def compute(self, images: Batch, targets: Any, sample_weight: Any = None) -> tuple[Weights, float]:
        """Return the gradient of a batch by weight name, and the batch's loss (see `Engine.gradient`).

        The arguments are those of Keras's `train_on_batch`.
        """
        import tensorflow as tf

        if self._take is None:
            self._take = tf.function(self._taken, reduce_retracing=True)
        before = {name: np.asarray(self._variables[name]).copy() for name in self._statistics()}
        loss, found = self._take(images, targets, sample_weight)
        gradient = {name: np.asarray(array) for name, array in zip(self._trained, found, strict=True)}
        for name, array in before.items():
            gradient[name] = array - np.asarray(self._variables[name])
            self._variables[name].assign(array)
        return {name: gradient[name] for name in self._variables}, float(loss)

    def _statistics(self) -> list[str]:
        return [name for name in self._variables if name.endswith(BATCH_NORM_STATISTIC_SUFFIXES)]

    def _taken(self, images: Any, targets: Any, sample_weight: Any) -> Any:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            found = self._model(images, training=True)
            loss = self._model.compute_loss(
                x=images, y=targets, y_pred=found, sample_weight=sample_weight, training=True
            )
        return loss, tape.gradient(loss, [self._variables[name] for name in self._trained])


_MIN_KNOWN_WEIGHT: Final = 1e-6


class KerasState:
    """A Keras model in training whose weights and optimiser state a checkpoint can save and restore.

    See `engine_interface.Checkpointable`.
    """

    model: Any
    _optimiser: Any

    def weights(self) -> Weights:
        """Return a copy of the network's weights."""
        return get_weights(self.model)

    def set_weights(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        """Replace the network's weights."""
        set_weights(self.model, weights)

    def optimiser_state(self) -> dict[str, NDArray[Any]]:
        """Return the variables of the optimiser, by index as text."""
        return {str(index): np.asarray(variable) for index, variable in enumerate(self._optimiser.variables)}

    def set_optimiser_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Set the variables of the optimiser to values that `optimiser_state` returned."""
        for index, variable in enumerate(self._optimiser.variables):
            variable.assign(state[str(index)])


class KerasEngine(KerasState):
    """A training engine (`engine_interface.Engine`) that uses Keras."""

    def __init__(
        self, specification: Specification, weights: Mapping[str, NDArray[np.float32]], *, settings: EngineSettings
    ) -> None:
        import keras

        keras.config.set_dtype_policy("mixed_bfloat16" if settings.precision == "bfloat16" else "float32")
        self.model = build_network(specification, outputs=["logits"])
        self._trained, losses = self.model, _losses(settings)
        if any(settings.outside_weights):
            maps = self.model.get_layer(specification.outputs["class_maps"]).output
            self._trained = keras.Model(self.model.input, [self.model.output, maps])
            losses = [losses, _outside(settings)]
        set_weights(self.model, weights)
        for layer in self.model.layers:
            if layer.name.removesuffix("_bn") in settings.frozen:
                layer.trainable = False
        self._optimiser = keras.optimizers.AdamW(0.0, weight_decay=settings.weight_decay, epsilon=1e-8)
        self._optimiser.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
        self._optimiser.build(self.model.trainable_variables)
        compile_model(self._trained, self._optimiser, loss=losses)
        self._gradients = KerasGradients(self.model, trained=self._trained)

    def step(self, images: Batch, targets: Batch, *, learning_rate: float, lungs: Batch | None = None) -> float:
        """Perform one AdamW step. Returns the mean loss of the batch before the step (see `Engine.step`)."""
        self._optimiser.learning_rate = learning_rate
        if self._trained is self.model:
            return float(self.model.train_on_batch(images, targets))
        return float(self._trained.train_on_batch(images, self._wanted(targets, lungs))[0])

    def gradient(self, images: Batch, targets: Batch, *, lungs: Batch | None = None) -> tuple[Weights, float]:
        """Return the gradient of a batch by weight name, and the batch's mean loss (see `Engine.gradient`)."""
        return self._gradients.compute(images, self._wanted(targets, lungs))

    def logits(self, images: Batch) -> Batch:
        """Return the logits (n, labels) of images (see `Engine.logits`)."""
        return np.asarray(self.model.predict_on_batch(images), np.float32)

    def _wanted(self, targets: Batch, lungs: Batch | None) -> Any:
        if self._trained is self.model:
            return targets
        if lungs is None:
            raise ValueError("evidence outside the lungs counts, but the lungs are not known")
        return [targets, lungs[..., None]]


def _losses(settings: EngineSettings) -> Any:
    """Return the loss function for Keras: categorical cross-entropy, or binary cross-entropy of the known targets."""
    from keras import losses, ops

    if settings.loss == "categorical":
        return losses.CategoricalCrossentropy(from_logits=True)

    weights = ops.convert_to_tensor(settings.label_weights or (1.0,), "float32")

    def binary(targets: Any, logits: Any) -> Any:
        known = ops.cast(ops.logical_not(ops.isnan(targets)), "float32") * weights
        each = ops.binary_crossentropy(ops.nan_to_num(targets), ops.cast(logits, "float32"), from_logits=True)
        return ops.sum(each * known) / ops.maximum(ops.sum(known), _MIN_KNOWN_WEIGHT)

    return binary


def _outside(settings: EngineSettings) -> Any:
    """Return the loss function for evidence outside the lungs, for Keras (see `Engine.step`)."""
    from keras import ops

    weights = ops.convert_to_tensor(settings.outside_weights, "float32")

    def outside(lungs: Any, maps: Any) -> Any:
        values, (rows, columns) = ops.cast(maps, "float32"), maps.shape[1:3]
        matrices = section_mean_matrix(lungs.shape[1], rows), section_mean_matrix(lungs.shape[2], columns)
        down, across = (ops.convert_to_tensor(matrix, "float32") for matrix in matrices)
        shares = ops.einsum("rh,bhwc,sw->brsc", down, ops.cast(lungs, "float32"), across)
        return ops.sum(ops.mean(ops.relu(values) * (1 - shares), (0, 1, 2)) * weights)

    return outside
