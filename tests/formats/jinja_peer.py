"""Random templates with what jinja2 makes of them, a line of JSON each: jinja_peer.py SEED COUNT

`{"seed", "source", "vars": JSON text, "text" or "error"}`. The environment is that of transformers'
apply_chat_template at 2026-01-15 12:34:56. tests/formats/jinja/ compares.
"""
import datetime, json, random, sys, warnings

import jinja2, jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def fail(message):
        raise jinja2.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    class Dict:
        def __call__(self, *args, **kwargs):
            return dict(*args, **kwargs)

        def fromkeys(self, *args, **kwargs):
            return dict.fromkeys(*args, **kwargs)

    env.globals["dict"] = Dict()
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = fail
    env.globals["strftime_now"] = datetime.datetime(2026, 1, 15, 12, 34, 56).strftime
    return env


TEXTS = ["", "a", "Hello", " two words ", "x<y & 'z'", 'say "hi"', "l1\nl2\n", "\n", "ünï", "你好", "👋🏽",
         "AbC", "a,b,,c", "  pad", "tab\there", "back\\slash", "ß", "%s", "{}", "1", "-3.5", "0x1f", "a\r\nb", "aXbXc",
         "ΟΔΟΣ Σ", "ǆ ŉ ᾳ", "काम", "²①٣", "Ⅳ½"]
VARS = {
    "messages": [{"role": "user", "content": " Hi <|eot_id|> there\n"}, {"role": "assistant", "content": None,
                 "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1, "y": [1.5, "é"], "z": None}}}]},
                 {"role": "tool", "content": "21.5"}, {"role": "user", "content": "bye", "name": "Bob"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "it's", "parameters": {"b": 1, "a": [True, 1e-7, 1e22, 2.0]}}}],
    "s": "Some Text, here", "t": "ünï 你好", "e": "", "n": 3, "m": -2, "z": 0, "f": 2.5, "g": -0.125, "yes": True, "no": False,
    "nil": None, "l": [3, 1, 2], "w": ["b", "A", "c", "a"], "d": {"k": "v", "items": 1, "q": {"r": [1, 2]}}, "el": [], "ed": {},
    "mixed": [1, "a", None, True, 2.0], "pairs": [["x", 1], ["y", 2]], "recs": [{"n": 2, "g": "b"}, {"n": 1, "g": "a"}, {"n": 3, "g": "B"}],
}
NAMES = list(VARS) + ["undef", "x", "y", "i"]


class Gen:
    def __init__(self, r):
        self.r = r
        self.loop = 0

    def pick(self, *xs):
        return self.r.choice(xs)

    def string(self):
        t = self.r.choice(TEXTS)
        q = self.pick("'", '"')
        return q + t.replace("\\", "\\\\").replace(q, "\\" + q).replace("\n", self.pick("\n", "\\n")).replace("\r", "\\r") + q

    def atom(self):
        r = self.r.random()
        if r < .45: return self.r.choice(NAMES)
        if r < .6: return self.string()
        if r < .75: return str(self.pick(0, 1, 2, 3, 7, 10, 255))
        if r < .8: return self.pick("1.5", "0.1", "2.0", "1e3", "1e-05", "3.14159", "1_000")
        if r < .87: return self.pick("true", "false", "none", "True", "None")
        if r < .88: return self.pick("self", "n.real", "f.imag", "n.numerator", "n.denominator", "yes.real", "m.conjugate()", "dict.fromkeys(w, 1)", "('<b>' | safe)", "(s | e)", "('%s&' | safe)")
        if r < .9 and self.loop:
            return "loop." + self.pick("index", "index0", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "depth0")
        return self.pick("[]", "{}", "()", "range(4)", "range(1, 9, 3)", "messages[0]", "messages[-1]", "messages[1:]", "d.k", "d['q']", "recs[0].n", "ns.v")

    def args(self, d, n):
        return ", ".join(self.expr(d) for _ in range(n))

    def filt(self, d):
        e = lambda: self.expr(d)
        return self.r.choice([
            lambda: "upper", lambda: "lower", lambda: "title", lambda: "capitalize", lambda: "trim", lambda: f"trim({self.string()})",
            lambda: "length", lambda: "count", lambda: "first", lambda: "last", lambda: "list", lambda: "join", lambda: f"join({self.string()})",
            lambda: "join(', ', attribute='role')", lambda: "string", lambda: "tojson", lambda: f"tojson(indent={self.pick(0,1,2,4)})",
            lambda: "tojson(sort_keys=true)", lambda: "tojson(ensure_ascii=true)", lambda: "tojson(separators=(',', ':'))",
            lambda: f"default({e()})", lambda: f"default({e()}, true)", lambda: f"d({e()})", lambda: "int", lambda: "int(7)", lambda: "float", lambda: "abs",
            lambda: "round", lambda: f"round({self.pick(0,1,2,3)})", lambda: "round(1, 'floor')", lambda: "round(method='ceil')",
            lambda: "reverse", lambda: "reverse | list", lambda: "sort", lambda: "sort(reverse=true)", lambda: "sort(case_sensitive=true)", lambda: "sort(attribute='n')",
            lambda: "sort(attribute='g,n')", lambda: "unique | list", lambda: "unique | join", lambda: "dictsort", lambda: "dictsort(by='value')", lambda: "items | list", lambda: "map('upper') | list",
            lambda: "map(attribute='role') | list", lambda: "map(attribute='n', default=5) | list", lambda: "map('string') | join('-')", lambda: "map('length') | list",
            lambda: f"select | list", lambda: "select('odd') | list", lambda: "select('string') | list", lambda: "reject('none') | list", lambda: "selectattr('n') | list",
            lambda: "selectattr('role', 'equalto', 'user') | list", lambda: "rejectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list", lambda: "selectattr('content', 'defined') | list | length",
            lambda: f"replace({self.string()}, {self.string()})", lambda: f"replace('a', 'b', 1)", lambda: "indent", lambda: "indent(2, true)", lambda: "indent(width=3, blank=true)", lambda: "indent('> ')",
            lambda: "sum", lambda: "sum(attribute='n')", lambda: "min", lambda: "max", lambda: "batch(2) | list", lambda: "batch(3, 'x') | list", lambda: "slice(2) | list", lambda: "slice(2, 0) | list",
            lambda: "groupby('g') | list", lambda: "groupby('n') | map(attribute='grouper') | list", lambda: "groupby('g') | map(attribute='list') | map('length') | list", lambda: "center(9)", lambda: f"truncate({self.pick(3,4,5,9)})", lambda: "truncate(4, true, '..', 0)", lambda: "wordcount", lambda: f"format({self.args(d, self.pick(0,1,2))})",
            lambda: "safe", lambda: "e", lambda: "escape", lambda: "forceescape", lambda: "safe | list", lambda: "sum(start='')", lambda: "attr('upper')", lambda: "map('first') | list", lambda: "select('gt', 1) | list", lambda: "length",
        ])()

    def method(self, d):
        s = self.string
        return self.r.choice([
            lambda: "strip()", lambda: f"strip({s()})", lambda: "lstrip()", lambda: "rstrip()", lambda: f"lstrip({s()})", lambda: "split()", lambda: f"split({s()})", lambda: "split(',', 1)", lambda: "rsplit(None, 1)", lambda: "rsplit('a', 1)", lambda: "splitlines()", lambda: "splitlines(true)",
            lambda: f"replace({s()}, {s()})", lambda: "replace('a', '', 1)", lambda: "upper()", lambda: "lower()", lambda: "title()", lambda: "capitalize()", lambda: "swapcase()", lambda: f"startswith({s()})", lambda: f"endswith({s()})", lambda: "startswith(('a', ' '))",
            lambda: f"find({s()})", lambda: f"rfind({s()})", lambda: f"count({s()})", lambda: f"find('a', {self.pick(0,1,2)})", lambda: "index('a')", lambda: f"join({self.expr(d)})", lambda: f"format({self.args(d, self.pick(0,1,2))})",
            lambda: f"zfill({self.pick(0,3,8)})", lambda: "center(8, '*')", lambda: "ljust(6)", lambda: "rjust(6, '.')", lambda: "isdigit()", lambda: "isalpha()", lambda: "isspace()", lambda: "isupper()", lambda: "islower()", lambda: "isalnum()", lambda: "isdecimal()", lambda: "isnumeric()", lambda: "istitle()", lambda: "isprintable()", lambda: "isascii()", lambda: "split(sep=',', maxsplit=1)", lambda: "splitlines(keepends=true)", lambda: "real", lambda: "bit_count()", lambda: "conjugate()", lambda: "casefold()", lambda: f"find({s()}, {self.pick(0,2,-1)}, {self.pick(1,2,-2)})", lambda: f"count({s()}, {self.pick(0,2)}, {self.pick(1,3)})",
            lambda: "removeprefix('a')", lambda: "removesuffix('c')", lambda: "partition(',')", lambda: "rpartition('X')", lambda: "expandtabs(4)",
            lambda: "get('k')", lambda: f"get({self.expr(d)}, 5)", lambda: "items()", lambda: "keys()", lambda: "values()", lambda: "keys() | list", lambda: "items() | list", lambda: "copy()", lambda: "index(1)", lambda: "count(1)", lambda: "append(1)", lambda: "pop('k')",
        ])()

    def test(self, d):
        return self.r.choice(["escaped", "defined", "undefined", "none", "string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "true", "false", "odd", "even", "callable", "upper", "lower",
                              "divisibleby 2", "divisibleby(3)", "equalto 1", "eq 'a'", "ne 2", "gt 1", "lt 2", "ge 1", "le 3", "in [1, 'a', none]", "in s", "sameas none", "not none", "not defined", "not string", "not in l"])

    def fmt(self, d):
        return self.pick("'%s|%5s|%-5s' % (s, n, t)", "'%d %05d %+d' % (n, n, n)", "'%.2f %8.3f %e %g' % (f, g, f, g)", "'%x %X %o %#x' % (255, 255, 8, 255)", "'%r' % [mixed]", "'%(k)s' % d", "'%%' % ()", "'%5.1s|' % s", "'%c' % 65",
                         "'{:>8}|{:<8}|{:^8}'.format(s, e, 'ab')", "'{0} {1} {0}'.format(n, s)", "'{a}'.format(a=1)", "'{:05d} {:+d} {:,}'.format(n, n, 1234567)", "'{:.2f} {:e} {:g} {:%}'.format(f, f, g, f)", "'{!r}'.format(s)", "'{0[k]} {0[q]}'.format(d)", "'{:{}}'.format('a', 5)", "'{:x} {:#b} {:o}'.format(255, 5, 8)", "'{:*^9}'.format(s)", "'{{}}'.format()", "'{:012,}|{:_x}|{:5}|{:010,.1f}'.format(12345, 70000, true, 1234.5)", "'%g' % 1e20", "'%g' % 0.00001", "'%s' % nil", "'%i' % 2.7")

    # Expressions whose operands mostly fit, so that most templates render; `wild` takes anything.
    def s(self, d):
        d -= 1
        if d <= 0: return self.pick("s", "t", "e", "d.k", "messages[0].content", self.string(), self.string(), "messages[0].role", "w[0]")
        k = self.s
        return self.r.choice([
            lambda: f"({k(d)} + {k(d)})", lambda: f"({k(d)} ~ {self.expr(d)})", lambda: f"({k(d)}).{self.smethod(d)}", lambda: f"{k(d)} | {self.pick('upper', 'lower', 'title', 'capitalize', 'trim', 'reverse', 'indent', 'indent(2, true)', 'center(9)', 'wordcount | string', 'truncate(5)')}",
            lambda: f"{self.expr(d)} | {self.pick('string', 'tojson', 'tojson(indent=2)')}" , lambda: f"{self.l(d)} | join({self.string()})", lambda: f"({k(d)})[{self.pick('0:1', '1:', ':-1', '::-1', '::2', '-3:')}]", lambda: f"({k(d)} * {self.pick(0, 1, 2)})", lambda: f"({k(d)} | {self.pick('safe', 'e', 'escape', 'forceescape')})", lambda: f"(({k(d)} | safe) + {k(d)})", lambda: f"({k(d)} + ({k(d)} | safe)).{self.smethod(d)}", lambda: f"(({k(d)} | safe) {self.pick('% s', '.format(s, n)', '~ s', '.join([s, t])', '.split()', '[1:]', '* 2', '| upper', '| trim')} | string)",
            lambda: f"({k(d)} if {self.b(d)} else {k(d)})", lambda: f"{k(d)} | replace({self.string()}, {k(d)})", lambda: self.fmt(d), lambda: f"({k(d)})"])()

    def smethod(self, d):
        s = self.string
        return self.pick("strip()", f"strip({s()})", "lstrip()", "rstrip()", f"replace({s()}, {s()})", "upper()", "lower()", "title()", "capitalize()", "swapcase()", "zfill(8)", "center(8, '*')", "ljust(6)", "rjust(6, '.')", "removeprefix('a')", "removesuffix('c')", "expandtabs(4)", f"split()[0:1] | join", f"split(',')[-1]")

    def n(self, d):
        d -= 1
        if d <= 0: return self.pick("n", "m", "z", "f", "g", "1", "2", "7", "0.5", "recs[0].n", "d.items" if self.r.random() < .01 else "l[0]", "1e3", "true")
        k = self.n
        return self.r.choice([lambda: f"({k(d)} {self.pick('+', '-', '*')} {k(d)})", lambda: f"({k(d)} {self.pick('/', '//', '%')} {self.pick('2', '-3', '0.7', '1e2', k(d))})", lambda: f"-{k(d)}", lambda: f"{self.l(d)} | length", lambda: f"{self.s(d)} | length",
            lambda: f"({self.l(d)} | select('number') | list | {self.pick('sum', 'min', 'max')})", lambda: f"{k(d)} | {self.pick('abs', 'int', 'float', 'round', 'round(1)', 'round(2)')}", lambda: f"{self.s(d)} | int", lambda: f"({self.s(d)}).find({self.string()})", lambda: f"{k(d)} ** {self.pick(0, 1, 2)}", lambda: f"({k(d)} if {self.b(d)} else {k(d)})"])()

    def b(self, d):
        d -= 1
        if d <= 0: return self.pick("yes", "no", "true", "false", "undef is defined", "tools", "el")
        return self.r.choice([lambda: f"({self.n(d)} {self.pick('<', '<=', '>', '>=', '==', '!=')} {self.n(d)})", lambda: f"({self.s(d)} {self.pick('==', '!=', '<', 'in', 'not in')} {self.s(d)})", lambda: f"({self.expr(d)} {self.pick('in', 'not in')} {self.l(d)})", lambda: f"{self.expr(d)} is {self.pick('defined', 'none', 'string', 'mapping', 'iterable', 'sequence', 'number', 'integer', 'boolean', 'true')}", lambda: f"{self.n(d)} is {self.pick('odd', 'even', 'divisibleby 2', 'gt 1')}",
            lambda: f"({self.b(d)} {self.pick('and', 'or')} {self.b(d)})", lambda: f"(not {self.b(d)})", lambda: f"({self.s(d)}).{self.pick('isdigit()', 'isupper()', 'islower()', 'isspace()', 'isalnum()', 'startswith(' + self.string() + ')', 'endswith(' + self.string() + ')')}"])()

    def l(self, d):
        d -= 1
        if d <= 0: return self.pick("l", "w", "el", "mixed", "pairs", "recs", "messages", "tools", "range(4)", "d", "s")
        k = self.l
        return self.r.choice([lambda: f"[{self.args(d, self.pick(0, 1, 2, 3))}]", lambda: f"{k(d)} | list", lambda: f"(({k(d)} | list) + ({k(d)} | list))", lambda: f"({k(d)} | list)[{self.pick('1:', ':2', '::-1', '-2:', '1:3')}]", lambda: f"{k(d)} | map('string') | {self.pick('sort', 'unique', 'list', 'reverse')} | list", lambda: f"({self.s(d)}).{self.pick('split()', 'split(' + repr(',') + ')', 'splitlines()', 'rsplit(None, 1)', 'partition(' + repr(' ') + ')')}",
            lambda: f"{k(d)} | {self.pick('batch(2)', 'slice(2)', 'reverse')} | list", lambda: f"d.{self.pick('items()', 'keys()', 'values()')} | list", lambda: "recs | map(attribute='n') | list", lambda: f"recs | {self.pick('sort', 'groupby', 'sort', 'unique')}(attribute='g') | list", lambda: "d | dictsort(by='key')", lambda: "messages | selectattr('role', 'equalto', 'user') | list", lambda: f"{k(d)} | {self.pick('select', 'reject')}({self.pick(repr('string'), repr('none'), repr('number'))}) | list", lambda: f"range({self.pick(0, 2, 5)})", lambda: "(1, s, n)"])()

    def expr(self, d):
        r = self.r.random()
        if r < .12: return self.wild(d)
        return (self.s if r < .5 else self.n if r < .67 else self.b if r < .8 else self.l)(d)

    def wild(self, d):
        d -= 1
        if d <= 0: return self.atom()
        e = lambda: self.expr(d)
        r = self.r.random()
        if r < .15: return self.atom()
        if r < .35: return f"{e()} | {self.filt(d)}"
        if r < .43: return f"({e()}).{self.method(d)}"
        if r < .47: return f"{self.r.choice(['s', 't', 'e', 'd', 'l', self.string()])}.{self.method(d)}"
        if r < .55: return f"({e()} {self.pick('+', '-', '*', '/', '//', '%', '~', '~', '+', '+')} {e()})"
        if r < .57: return f"{e()} ** {self.pick(0, 1, 2, 3, '-1')}"
        if r < .64: return f"({e()} {self.pick('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {e()})"
        if r < .66: return f"({e()} < {e()} <= {e()})"
        if r < .73: return f"{e()} is {self.test(d)}"
        if r < .78: return f"({e()} {self.pick('and', 'or')} {e()})"
        if r < .80: return f"(not {e()})"
        if r < .82: return f"{self.pick('-', '+', '-', '- ')}{e()}"
        if r < .86: return f"({e()} if {e()} else {e()})" if self.r.random() < .7 else f"({e()} if {e()})"
        if r < .88: return f"[{self.args(d, self.pick(0, 1, 2, 3))}]"
        if r < .90: return "{" + ", ".join(f"{self.pick(self.string(), '1', 'n', 'none')}: {e()}" for _ in range(self.pick(0, 1, 2))) + "}"
        if r < .91: return f"({e()}, {e()})"
        if r < .95: return f"({e()})[{self.pick(e(), '0', '-1', '1:', ':2', '::-1', '1:3', '::2', '-2:', repr('k'), '5')}]"
        if r < .96: return self.fmt(d)
        if r < .97: return f"({e()}).{self.pick('k', 'role', 'content', 'items', 'nope', 'upper', '__class__', '0')}"
        if r < .98: return f"mac({self.args(d, self.pick(0, 1, 2))})"
        return self.pick("dict(a=1, b=n)", "dict(pairs)", "strftime_now('%Y-%m-%d %H:%M')", "namespace(v=1).v", "joiner('|')()", "cycler(1, 2).next()", "raise_exception('no')", "range(n)", "range(m)", "cyc.next()", "jn()")

    def tag(self, body):
        return "{%" + self.pick("", "", "", "-", "-", "+") + " " + body + " " + self.pick("", "", "", "-", "-", "+") + "%}"

    def text(self):
        return self.pick("", " ", "\n", "a", " b ", "\n  ", "c\n", "  d\n\n", "{", "}", "%", "é", "\t", "{# c #}", "{#- c -#}", "  {# c #}\n", "{% raw %} {{ x }} {%- endraw %}", " \n {%- raw -%} \n {% x \n{% endraw -%}\n")

    def out(self, d):
        return "{{" + self.pick("", "", "-") + " " + self.expr(d) + " " + self.pick("", "", "-") + "}}"

    def stmt(self, d):
        d -= 1
        body = lambda: self.body(d)
        if d <= 0: return self.out(3)
        r = self.r.random()
        x = lambda k=3: self.expr(k)
        if r < .3: return self.out(4)
        if r < .42:
            s = self.tag(f"if {x()}") + body()
            while self.r.random() < .3: s += self.tag(f"elif {x()}") + body()
            if self.r.random() < .5: s += self.tag("else") + body()
            return s + self.tag("endif")
        if r < .6:
            target, it = self.r.choice([("x", "l"), ("x", "w"), ("x", "messages"), ("x", "recs"), ("k, v", "d.items()"), ("x", "s"), ("x", "range(3)"), ("k, v", "pairs"), ("x", "d"), ("x", x()), ("x", "l | map('string')"), ("(x, y)", "pairs"), ("k, v", "d | items"), ("x", "undef"), ("x", "tools")])
            cond = f" if {self.pick('x', 'x != 2', 'loop is defined', x(2), 'x is not none')}" if self.r.random() < .25 else ""
            rec = " recursive" if self.r.random() < .05 else ""
            self.loop += 1
            b = body()
            if self.r.random() < .15: b += self.tag(f"if {self.pick('loop.index == 2', x(2))}") + self.tag(self.pick("break", "continue")) + self.tag("endif") + body()
            if self.r.random() < .1: b += self.pick("{{ loop.cycle('a', 'b') }}", "{{ loop.changed(x) }}", "{{ loop(x.kids) }}")
            self.loop -= 1
            els = self.tag("else") + body() if self.r.random() < .3 else ""
            return self.tag(f"for {target} in {it}{cond}{rec}") + b + els + self.tag("endfor")
        if r < .7: return self.tag(f"set {self.pick('x', 'y', 'i', 'x, y')} = {x()}")
        if r < .74: return self.tag(f"set ns.{self.pick('v', 'w')} = {self.pick('ns.v ~ 1', x())}")
        if r < .78: return self.tag(f"set {self.pick('x', 'y')}{self.pick('', ' | upper', ' | trim | length')}") + body() + self.tag("endset")
        if r < .82: return self.tag(f"with {self.pick('x', 'i')} = {x()}") + body() + self.tag("endwith")
        if r < .87:
            sig = self.pick("a", "a, b=2", "a=x, b='q'", "", "a, b=a")
            l, self.loop = self.loop, 0
            b = self.pick("{{ a }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ b }}", "") + body()
            self.loop = l
            return self.tag(f"macro mac({sig})") + b + self.tag("endmacro")
        if r < .9: return self.tag(f"call{self.pick('', '(x)')} mac({self.args(2, self.pick(0, 1))})") + body() + self.tag("endcall")
        if r < .93: return self.tag(f"filter {self.filt(2)}") + body() + self.tag("endfilter")
        if r < .95: return self.tag("generation") + body() + self.tag("endgeneration")
        return self.out(5)

    def body(self, d):
        return "".join(self.text() + (self.stmt(d) if self.r.random() < .8 else "") for _ in range(self.r.randint(1, 3))) + self.text()

    def template(self):
        head = "{% set ns = namespace(v=0) %}{% set cyc = cycler('p', 'q') %}{% set jn = joiner() %}"
        return head + self.body(4) + self.pick("", "\n", "\n\n")


# Python writes addresses and kinds of iterators here; nobody compares those.
OPAQUE = (" object at 0x", "<bound method", "<built-in method", "<function", "<Macro", "<Cycler", "<Joiner",
          "<LoopContext", "<Namespace", "<class", "<generator", "<jinja2", "Undefined")


def main():
    warnings.simplefilter("ignore", SyntaxWarning)
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    env = environment()
    text = json.dumps(VARS, ensure_ascii=False)
    for n in range(seed, seed + count):
        gen = Gen(random.Random(n))
        source = gen.template() if n % 3 else "{{ " + gen.expr(4) + " }}"
        case = {"seed": n, "source": source, "vars": text}
        try:
            case["text"] = env.from_string(source).render(**json.loads(text))
            case["text"].encode()
        except Exception as error:
            case.pop("text", None)
            case["error"] = f"{type(error).__name__}: {error}"
        if not any(word in case.get("text", "") for word in OPAQUE):
            print(json.dumps(case))


if __name__ == "__main__":
    main()
