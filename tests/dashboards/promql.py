"""The selectors of a PromQL expression, as far as a lint of dashboards asks for them.

Whether the expression is valid is for a real Prometheus to say; this reads valid ones.
"""

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""\s+|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?P<name>[a-zA-Z_:][\w:]*)"""
    r"""|(?P<other>[=!]~|!=|[<>=]=|[\d.]+\w*|\$\w+|.)""",
    re.S,
)
LISTS = {"by", "without", "on", "ignoring", "group_left", "group_right"}  # of labels, in brackets
WORDS = LISTS | {"and", "or", "unless", "bool", "offset", "inf", "nan"}


@dataclass
class Selector:
    name: str
    matchers: dict  # label -> (operator, text)
    interval: str  # what stands in [], empty for an instant vector
    function: str  # that it is an argument of, empty for none


class Reader:
    def __init__(self, expression):
        found = (match for match in TOKEN.finditer(expression) if not match[0].isspace())
        self.tokens = [(match.lastgroup, match[0]) for match in found]
        self.at = 0
        self.functions = []  # one for every bracket that is open

    def next_is(self, text):
        return self.at < len(self.tokens) and self.tokens[self.at][1] == text

    def take(self):
        self.at += 1
        return self.tokens[self.at - 1]

    def until(self, end):
        taken = []
        while not self.next_is(end):
            taken.append(self.take())
        self.take()
        return taken

    def matchers(self):
        if not self.next_is("{"):
            return {}
        self.take()
        inside = [text for _, text in self.until("}") if text != ","]
        triples = zip(inside[0::3], inside[1::3], inside[2::3])
        return {label: (operator, text[1:-1]) for label, operator, text in triples}

    def interval(self):
        if not self.next_is("["):
            return ""
        self.take()
        return "".join(text for _, text in self.until("]"))

    def selectors(self):
        while self.at < len(self.tokens):
            kind, text = self.take()
            if text == "(":
                self.functions.append("")
            elif text == ")":
                self.functions.pop()
            elif kind == "name" and text in LISTS and self.next_is("("):
                self.until(")")
            elif kind == "name" and self.next_is("("):
                self.take()
                self.functions.append(text)
            elif kind == "name" and text not in WORDS and not self.is_list_next():
                function = self.functions[-1] if self.functions else ""
                yield Selector(text, self.matchers(), self.interval(), function)

    def is_list_next(self):
        """After an aggregation, as in `sum by (le) (...)`."""
        return self.at < len(self.tokens) and self.tokens[self.at][1] in ("by", "without")


def selectors(expression):
    return list(Reader(expression).selectors())
