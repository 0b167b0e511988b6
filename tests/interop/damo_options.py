"""Compares the commands and options of the installed damo with the tables of docs/reference/damo.md: each must be in a
table of its command, with as many values, and nothing else may be there."""
import argparse
import importlib.util
import re
import sys
from pathlib import Path

# The module of the package's own name within it.
sys.path[:0] = importlib.util.find_spec("damo").submodule_search_locations
import damo  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/damo.md"


def of_damo():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    for command in damo.subcmds:
        command.add_parser(commands)
    found = {}

    def walk(parser, path):
        if path:
            found[" ".join(path)] = options = {}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                if path != ["help"]:
                    found.pop(" ".join(path), None)
                for name, below in action.choices.items():
                    walk(below, [*path, name])
            elif not isinstance(action, argparse._HelpAction):
                takes = action.nargs if action.nargs is not None else int(not isinstance(action, argparse._StoreTrueAction))
                if not action.option_strings:
                    options["<positional>"] = 1
                for name in action.option_strings:
                    options[name] = takes if isinstance(takes, int) else "more"

    walk(parser, [])
    return found


def of_page():
    found, options_of = {}, {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        heading = section.split("\n")[0]
        for line in section.split("\n"):
            cell = re.match(r"\| `(.*?)` \| (same|better|absent|refused) \|", line)
            if not cell:
                continue
            commands, colon, options = cell[1].rpartition(": ")
            commands = commands.split(", ") if colon else re.findall(r"`([^`]+)`", heading)
            for option in options.split("`, `"):
                if heading == "Commands":
                    found[option] = {}
                    continue
                names, *values = option.split(" ")
                for command in commands:
                    of_command = options_of.setdefault(command, {})
                    if not names.startswith("-"):
                        of_command["<positional>"] = 1
                        continue
                    for name in names.split("/"):
                        of_command[name] = "more" if values[-1:] == ["..."] else len(values)
    return {command: options_of.get(command, {}) for command in found}


def main():
    damos, ours = of_damo(), of_page()
    wrong = [f"no row for the command {name}" for name in damos if name not in ours]
    # damo makes these for the modules of the kernel that it runs on.
    wrong += [f"damo has no command {name}" for name in ours if name not in damos and "module stat" not in name]
    for command in damos.keys() & ours.keys():
        # Options of a refused command are refused with it; a table may serve several commands.
        if ours[command]:
            for name, takes in damos[command].items():
                if name not in ours[command]:
                    wrong.append(f"{command}: no row for {name}")
                elif ours[command][name] != takes and "more" not in (takes, ours[command][name]):
                    wrong.append(f"{command} {name}: takes {takes}, the table says {ours[command][name]}")
    print("\n".join(sorted(wrong)) or "as the tables say")
    return 1 if wrong else 0


sys.exit(main())
