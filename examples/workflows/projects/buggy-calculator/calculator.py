"""A small calculator: evaluates text such as "2 * (3 + 4)"."""

import re

TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[-+*/()])")


class CalculatorError(ValueError):
    """The text is not something this calculator can work out."""


def tokenize(text):
    """Splits text into numbers, operators and parentheses."""
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if not match:
            raise CalculatorError(f"unexpected character at {at}: {text[at]!r}")
        tokens.append(match.group(1))
        at = match.end()
    return tokens


class Parser:
    """Evaluates a list of tokens while it reads them."""

    def __init__(self, tokens):
        self.tokens = tokens
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self):
        token = self.peek()
        if token is None:
            raise CalculatorError("unexpected end")
        self.at += 1
        return token

    def expression(self):
        value = self.term()
        if self.peek() in ("+", "-"):
            if self.take() == "+":
                return value + self.expression()
            return value - self.expression()
        return value

    def term(self):
        value = self.factor()
        while self.peek() in ("*", "/"):
            if self.take() == "*":
                value = value * self.factor()
            else:
                value = value / self.factor()
        return value

    def factor(self):
        token = self.take()
        if token == "-":
            return -self.factor()
        if token == "(":
            value = self.expression()
            if self.take() != ")":
                raise CalculatorError("missing )")
            return value
        if token in "+*/)":
            raise CalculatorError(f"unexpected {token!r}")
        return float(token) if "." in token else int(token)


def evaluate(text):
    """Works out text; CalculatorError when that is impossible."""
    parser = Parser(tokenize(text))
    value = parser.expression()
    if parser.peek() is not None:
        raise CalculatorError(f"unexpected {parser.peek()!r}")
    return value
