"""Classes that a configuration names: which it may, with which options, and how they are made.

A node of a configuration is a class and its options: `{_target_: package.Class, option: value}`.
The class's own signature declares the options: their types and defaults stand nowhere else. A
checked node is a `Choice`, which makes the object when it is called.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from keyword import iskeyword
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    NamedTuple,
    TypeGuard,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from linear_transformers.config.messages import first_line, not_installed, unknown_key
from linear_transformers.config.ranges import FOREIGN_RANGES, in_words

T = TypeVar("T")

TARGET = "_target_"
OURS = "linear_transformers"
# What a configuration may name besides this package: modules, and classes by their full names.
FOREIGN = ("torch.optim", "lightning.pytorch.Trainer", "lightning.pytorch.callbacks")
# Packages and classes that were allowed on purpose: see `allow`.
_allowed: list[str] = []

CONVERSION = ConfigDict(
    arbitrary_types_allowed=True, coerce_numbers_to_str=True, allow_inf_nan=False
)
PLAIN = (bool, int, float, str, NoneType)


class Option(NamedTuple):
    """A parameter of a class: its type, and its default or `inspect.Parameter.empty`.

    Attributes:
        annotation: The type.
        default: The default.
        recorded: Whether a default is written into the checked configuration. It is for
            keyword-only parameters of classes that are not torch's or Lightning's: positional
            ones may be supplied by the program.
    """

    annotation: Any
    default: Any
    recorded: bool

    @property
    def is_factory(self) -> bool:
        """Whether it is called by the class, and not made before."""
        return any(get_origin(part) is Callable for part in _parts(self.annotation))


@dataclass(frozen=True)
class Choice(Generic[T]):
    """A class or function with checked options. Calling it makes the object.

    Attributes:
        name: The dotted name, as the configuration has it.
        target: The class or function.
        options: Its options: plain data, and choices.
        path: Where in the configuration it stands, for messages.
    """

    name: str
    target: Callable[..., T]
    options: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""

    def __call__(self, *given: Any, **supplied: Any) -> T:
        """Make the object.

        Args:
            given: What the program supplies by position.
            supplied: What the program supplies by name.

        Raises:
            ValueError: The class refuses its options, lacks one, or the configuration sets
                one that the program supplies.
        """
        if taken := supplied.keys() & self.options:
            raise ValueError(f"{self.path}.{min(taken)} is set by the program. Leave it out.")
        declared = options_of(self.target)
        options = {
            name: value() if isinstance(value, Choice) and not declared[name].is_factory else value
            for name, value in self.options.items()
        }
        try:
            inspect.signature(self.target).bind(*given, **supplied, **options)
        except TypeError as error:
            raise ValueError(f"{self.path}: {first_line(error)}.") from error
        # What a foreign class raises here is about its options.
        foreign = (TypeError, RuntimeError, ImportError) if _is_foreign(self.target) else ()
        try:
            return self.target(*given, **supplied, **options)
        except (ValueError, *foreign) as error:
            raise ValueError(
                f"{self.path}: {first_line(error)}." if foreign else str(error)
            ) from error

    def with_options(self, **options: Any) -> "Choice[T]":
        """Return the same choice with some options replaced, each of which must be declared.

        Raises:
            ValueError: It is not.
        """
        return checked_choice({**self.plain(), **options}, self.path, object)

    def without_free_options(self) -> "Choice[T]":
        """Return the same choice without the options on which no result of a model depends.

        A class names them in `free_options`: how it is computed, what it does in training.
        """
        free = getattr(self.target, "free_options", ())
        kept = {
            name: value.without_free_options() if isinstance(value, Choice) else value
            for name, value in self.options.items()
            if name not in free
        }
        return replace(self, options=kept)

    def plain(self) -> dict[str, Any]:
        """Return the node as plain data, for records and checkpoints."""
        return {TARGET: self.name, **plain(self.options)}


def allow(*names: str) -> None:
    """Let configurations name further classes, for the rest of this process.

    Args:
        names: The dotted names of packages, modules or classes.
    """
    _allowed.extend(name for name in names if not _may_be_named(name))


def allowing() -> list[str]:
    """Return the words of a command line that allow what was allowed here."""
    packages = _allowed_packages()
    return [f"allow=[{','.join(sorted(packages))}]"] if packages else []


def classes_in(config: Any) -> Iterator[str]:
    """Yield the names of the classes that a configuration names."""
    if isinstance(config, Mapping):
        if isinstance(name := config.get(TARGET), str):
            yield name
        config = [*config.values()]
    if isinstance(config, list):
        for part in config:
            yield from classes_in(part)


def is_ours(module: str) -> bool:
    """Return whether a module is of this package, or of one that was allowed on purpose."""
    package = module.partition(".")[0]
    return package == OURS or package in _allowed_packages() - {"torch", "lightning"}


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked options as plain data: dicts, lists, strings, numbers, None."""

    def data(value: Any) -> Any:
        if isinstance(value, Choice):
            return value.plain()
        if isinstance(value, Mapping):
            return plain(value)
        if is_dataclass(value):
            return plain(vars(value))
        return [data(part) for part in value] if isinstance(value, list | tuple) else value

    # Some names are numbers: Lightning's schedule of accumulation has the epochs as its keys.
    return {
        _key(name) if isinstance(name, str) else name: data(value)
        for name, value in options.items()
    }


def checked(declaration: Callable[..., Any], given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the options of a class, converted to their types, with their defaults.

    Args:
        declaration: The class or function that declares them; a dataclass for a job's own.
        given: The options as the configuration has them.
        path: Where in the configuration they stand.

    Raises:
        ValueError: An option is unknown, missing, of another type or out of range; or one
            names a class that may not be named, or not there.
    """
    declared = options_of(declaration)
    # `continue` is a key and no parameter: that has an underscore.
    found = {f"{key}_" if iskeyword(key) else key: value for key, value in given.items()}
    if unknown := next((name for name in found if name not in declared), None):
        within = [
            _join(path, f"{key}.{unknown}")
            for key, value in found.items()
            if isinstance(value, Mapping) and unknown in value
        ]
        raise ValueError(unknown_key(_join(path, unknown), declared, within))
    options = {}
    for name, option in declared.items():
        where = _join(path, _key(name))
        if name in found:
            options[name] = _conformed(option.annotation, found[name], where)
        elif option.recorded and option.default is inspect.Parameter.empty:
            raise ValueError(f"{where} has no value. Give it: {where}=...")
        elif option.recorded and isinstance(option.default, PLAIN):
            options[name] = option.default
    return options


def checked_choice(node: Any, path: str, kind: Any) -> Choice[Any]:
    """Return a node as a choice.

    Args:
        node: A mapping with `_target_`.
        path: Where in the configuration it stands.
        kind: The class of what it must make; anything else than a class is not checked.

    Raises:
        ValueError: See `checked`.
    """
    if not isinstance(node, Mapping) or not isinstance(node.get(TARGET), str):
        raise ValueError(f"{path} names no class: {path}.{TARGET} has no value.")
    name = node[TARGET]
    target = resolved(name, f"{path}.{TARGET}")
    made = target if isinstance(target, type) else get_type_hints(target).get("return")
    if _is_class(kind) and not (_is_class(made) and issubclass(made, kind)):
        raise ValueError(f"{path}.{TARGET}={name} makes no {kind.__name__}, which belongs there.")
    if inspect.isabstract(target):
        raise ValueError(f"{path}.{TARGET}={name} is what others inherit from. Name one of those.")
    options = {key: value for key, value in node.items() if key != TARGET}
    return Choice(name, target, checked(target, options, path), path)


def resolved(name: str, path: str) -> Callable[..., Any]:
    """Return the class or function of a dotted name, if a configuration may name it.

    Raises:
        ValueError: It may not, or there is no such class.
    """
    module, _, attribute = name.rpartition(".")
    if not re.fullmatch(r"[^\W\d]\w*(\.\w+)+", name):
        raise ValueError(f"{path}={name!r}: there is no such class.")
    package = name.partition(".")[0]
    if not _may_be_named(name):
        raise ValueError(
            f"{path}={name} may not be named: it is not of {OURS}. If you trust all of "
            f"{package}, add allow=[{package}]."
        )
    found: Any
    try:
        found = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        if not _is_in(module, str(error.name)):
            raise  # of a package that the module itself needs
        if error.name == package:
            raise ValueError(not_installed(f"{path}={name}", package)) from error
        found = None
    # Defined there, and not what a module happens to import.
    defined = getattr(found, "__module__", "").partition(".")[0] == package
    made = inspect.isclass(found) or inspect.isfunction(found)
    if attribute.startswith("_") or not defined or not made:
        raise ValueError(f"{path}={name}: there is no such class.")
    return found


def _allowed_packages() -> set[str]:
    return {name.partition(".")[0] for name in _allowed}


def _may_be_named(name: str) -> bool:
    return any(_is_in(name, package) for package in (OURS, *FOREIGN, *_allowed))


def _is_in(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@cache
def options_of(declaration: Callable[..., Any]) -> dict[str, Option]:
    """Return what a class, function or dataclass declares: its parameters, and where it takes
    further ones by `**`, those of the classes that it inherits from."""
    found: dict[str, Option] = {}
    for constructor in _constructors(declaration):
        hints = get_type_hints(constructor, include_extras=True)
        further = False
        for name, parameter in list(inspect.signature(constructor).parameters.items()):
            if parameter.kind is parameter.VAR_KEYWORD:
                further = True
            elif name != "self" and parameter.kind is not parameter.VAR_POSITIONAL:
                recorded = parameter.kind is parameter.KEYWORD_ONLY and not _is_foreign(declaration)
                annotation = hints.get(name, Any)
                if _is_foreign(declaration):
                    annotation = FOREIGN_RANGES.get(name, annotation)
                option = Option(annotation, parameter.default, recorded)
                found.setdefault(name, option)
        if not further:
            break
    return found


def _constructors(declaration: Callable[..., Any]) -> list[Callable[..., Any]]:
    if not isinstance(declaration, type):
        return [declaration]
    return [c.__dict__["__init__"] for c in declaration.__mro__ if "__init__" in c.__dict__]


def _is_foreign(target: Callable[..., Any]) -> bool:
    return target.__module__.partition(".")[0] in ("torch", "lightning")


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the annotation itself."""
    if get_origin(annotation) is Annotated:
        return _parts(get_args(annotation)[0])
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _conformed(annotation: Any, value: Any, path: str) -> Any:
    """Return a value converted to a type; a node becomes a choice."""
    parts = _parts(annotation)
    if value is None and NoneType in parts:
        return None
    for part in parts:
        if get_origin(part) in (Callable, Choice):  # the last argument is what is made
            return checked_choice(value, path, get_args(part)[-1])
        if get_origin(part) is dict and isinstance(value, Mapping):
            return _conformed_entries(get_args(part)[1], value, path)
        if is_dataclass(part) and isinstance(part, type) and isinstance(value, Mapping):
            return part(**checked(part, value, path))
        if _is_class(part) and _is_node(value):
            return checked_choice(value, path, part)
    if any(is_dataclass(part) for part in parts):
        raise ValueError(f"{path}={value!r}: it must be a group of options.")
    if (kinds := _leaves(annotation)) & {int, float} and bool not in kinds and _has_bool(value):
        raise ValueError(f"{path}={value}: it must be a number, and true and false are none.")
    try:
        return TypeAdapter(annotation, config=CONVERSION).validate_python(value)
    except PydanticSchemaGenerationError:  # a type that has no words for what it takes
        return value
    except ValidationError as error:
        raise ValueError(f"{path}={value!r}: {_expected(error)}.") from error


def _leaves(annotation: Any) -> set[Any]:
    """Return the types of the numbers and words that a type is of, alone or in lists."""
    return {
        leaf
        for part in _parts(annotation)
        for leaf in ((part,) if part in PLAIN else set().union(*map(_leaves, get_args(part))))
    }


def _has_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list) and any(map(_has_bool, value)))


def _is_class(kind: Any) -> TypeGuard[type]:
    return isinstance(kind, type) and kind is not Any  # which is a class since Python 3.11


def _is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and TARGET in value


def _conformed_entries(annotation: Any, entries: Mapping[str, Any], path: str) -> dict[str, Any]:
    nodes = [key for key, value in entries.items() if _is_node(value)]
    for key, value in entries.items():
        misspelt = get_close_matches(str(key), nodes, n=1)
        if isinstance(value, Mapping) and key not in nodes and misspelt:
            raise ValueError(unknown_key(_join(path, key), nodes))
    return {key: _conformed(annotation, value, _join(path, key)) for key, value in entries.items()}


def _expected(error: ValidationError) -> str:
    """Return what a value must be, in words: pydantic has some for each member of a union."""
    words, choices = [], []
    for fault in error.errors():
        limits = fault.get("ctx", {})
        match fault["type"]:
            case "greater_than_equal" | "greater_than" | "less_than" | "less_than_equal":
                words += [f"it must be {in_words(end, limit)}" for end, limit in limits.items()]
            case "literal_error":
                choices.append(limits["expected"].replace(" or ", ", "))
            case "list_type" | "tuple_type":
                words.append(f"it must be a list, such as [{fault['input']}]")
            case "missing":  # of a tuple
                words.append("it has too few values")
            case "none_required" | "is_instance_of" | "predicate_failed":
                pass  # of no help to a person
            case _:
                said = fault["msg"].partition(",")[0]
                words.append(said.replace("Input should be", "it must be"))
    if choices:
        words.append(f"choose one of {', '.join(choices)}")
    return "; or ".join(dict.fromkeys(words)) or "it has another type"


def _key(parameter: str) -> str:
    """Return the key that sets a parameter."""
    return parameter[:-1] if iskeyword(parameter[:-1]) else parameter


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
