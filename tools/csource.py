# SPDX-License-Identifier: Apache-2.0
"""Reads C well enough for the checks: blanks comments and strings, finds functions and includes.

Lines keep their numbers: what is blanked becomes spaces. Tests: tests/tools.
"""
import re

TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.M)
KEYWORDS = {'if', 'for', 'while', 'switch', 'return', 'sizeof', 'do', 'else'}


def blank(text):
    """Comments and literals as spaces (line breaks stay)."""
    return TOKEN.sub(lambda m: re.sub(r'[^\n]', ' ', m.group(0)), text)


def blank_comments(text):
    return TOKEN.sub(lambda m: re.sub(r'[^\n]', ' ', m.group(0)) if m.group(0)[0] == '/' else m.group(0), text)


def line_of(text, offset):
    return text.count('\n', 0, offset) + 1


def includes(text):
    """(line, 'quote' or 'angle', path) of each include."""
    clean = blank_comments(text)
    return [(line_of(clean, m.start()), 'quote' if m.group(1) == '"' else 'angle', m.group(2))
            for m in INCLUDE.finditer(clean)]


def functions(text):
    """(name, first line, last line) of each function definition; the first line is that of its name.

    tern's style is relied upon: a definition's opening brace stands alone in column 0, and so does the
    closing one. Macros that define functions are not seen.
    """
    lines = blank(text).split('\n')
    found = []
    start = None
    for i, line in enumerate(lines):
        if line.rstrip() == '{' and start is None:
            j = i - 1
            while j > 0 and lines[j].strip() and not re.match(r'[A-Za-z_].*\(', lines[j]):
                j -= 1
            names = re.findall(r'(\w+)\s*\(', lines[j]) if j >= 0 else []
            names = [n for n in names if n not in KEYWORDS and n != '__attribute__' and not n.isupper()]
            start = (names[0] if names else '?', j + 1)
        elif line.startswith('}') and start is not None:
            found.append((start[0], start[1], i + 1))
            start = None
    return found


def function_at(funcs, line):
    for name, first, last in funcs:
        if first <= line <= last:
            return name
    return None
