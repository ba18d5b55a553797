"""Hunks with the code before and after. `|` stands between the lines, `#` at the end of a line for the mark."""

STATEMENTS = {
    "between": ("x = a|# on y|y = x", " x = a|+log(a)| y = x", "x = a|log(a) #|# on y|y = x"),
    "behind one neighbour": ("a(1)|b(1)", " a(1)|+c(1)", "a(1)|c(1) #|b(1)"),
    "before one neighbour": ("a(1)|b(1)", "+c(1)| b(1)", "a(1)|c(1) #|b(1)"),
    "several, with an empty line": ("a(1)|b(1)", " a(1)|+c(1)|+|+d(1)| b(1)", "a(1)|c(1) #||d(1) #|b(1)"),
    "a comment with it": ("a(1)", "+# why|+c(1)| a(1)", "# why|c(1) #|a(1)"),
    "context has other comments": ("# one|a(1)", " # another| a(1)|+c(1)", "# one|a(1)|c(1) #"),
    "context in another layout": ("f( a,|   b)", " f(a, b)|+c(1)", "f( a,|   b)|c(1) #"),
    "context with other quotes": ("f('a' \"b\")", ' f("ab")|+c(1)', "f('a' \"b\")|c(1) #"),
    "replaced": ("# why|x = a  # tail|y = x", "-x = a|+x = a + 1| y = x", "# why|x = a + 1 #|y = x"),
    "by several": ("x = a|y = x", "-x = a|+x = b|+z = x| y = x", "x = b #|z = x #|y = x"),
    "several by one": ("a(1)|b(1)|c(1)", " a(1)|-b(1)|-c(1)|+d(1)", "a(1)|d(1) #"),
    "deleted between neighbours": ("x = a|log(x)|y = x", " x = a|-log(x)| y = x", "x = a|# vpatch: demo|y = x"),
    "wrapped": (
        "g(a)|h(a)",
        "-g(a)|+try:|+    g(a)|+except A:|+    pass| h(a)",
        "try: #|    g(a)|except A:|    pass|h(a)",
    ),
    "unwrapped": ("if a:|    g(a)|h(a)", "-if a:|-    g(a)|+g(a, b)| h(a)", "g(a, b) #|h(a)"),
    "two places of one hunk": (
        "a(1)|b(1)|c(1)|d(1)",
        " a(1)|+x(1)| b(1)|-c(1)|+y(1)| d(1)",
        "a(1)|x(1) #|b(1)|y(1) #|d(1)",
    ),
    "the rest of a gap stays": ("g(a)|x = 1|h(a)", "-g(a)|+g(b)| ...| h(a)", "g(b) #|x = 1|h(a)"),
    "at the top": ("'''doc'''|g(a)", " ^|+h(a)| g(a)", "'''doc'''|h(a) #|g(a)"),
    "at the top, without a neighbour": ("'''doc'''|g(a)", " ^|+h(a, 1)", "'''doc'''|h(a, 1) #|g(a)"),
    "at the bottom": ("g(a)|g(a)", " g(a)|+h(a)| ^", "g(a)|g(a)|h(a) #"),
    "in an inner block": ("if a:|    g(a)|    h(a)", " g(a)|+k(a)| h(a)", "if a:|    g(a)|    k(a) #|    h(a)"),
    "below a header": (
        "g(a)|if a:|    g(a)",
        " if a:|-    g(a)|+    h(a)",
        "g(a)|if a:|    h(a) #",
    ),
    "below a header, among others": (
        "if a:|    x(a)|    g(a)|    y(a)",
        " if a:|     ...|-    g(a)|+    h(a)|     ...",
        "if a:|    x(a)|    h(a) #|    y(a)",
    ),
    "in an else": (
        "if a:|    x(a)|else:|    g(a)",
        " if a:|     ...| else:|-    g(a)|+    h(a)",
        "if a:|    x(a)|else:|    h(a) #",
    ),
    "in a handler": (
        "try:|    x(a)|except A:|    g(a)",
        " try:|     ...| except A:|-    g(a)|+    h(a)",
        "try:|    x(a)|except A:|    h(a) #",
    ),
    "in a finally": (
        "try:|    x(a)|finally:|    g(a)",
        " try:|     ...| finally:|+    h(a)|     g(a)",
        "try:|    x(a)|finally:|    h(a) #|    g(a)",
    ),
    "in a case": (
        "match a:|    case 1:|        g(a)|    case _:|        b",
        " match a:|     case 1:|-        g(a)|+        h(a)|     case _:|         ...",
        "match a:|    case 1:|        h(a) #|    case _:|        b",
    ),
    "in a function": ("def f():|    g(a)", " def f():|+    k(a)|     g(a)", "def f():|    k(a) #|    g(a)"),
    "a docstring is no line": (
        "def f():|    'doc'|    g(a)",
        " def f():|-    g(a)|+    h(a)",
        "def f():|    'doc'|    h(a) #",
    ),
    "a definition behind another": (
        "def f():|    return 1",
        " def f():|     ...|+|+def g():|+    return 2",
        "def f():|    return 1||def g(): #|    return 2",
    ),
    "in a class": (
        "class C:|    a: int = 1|    'on a'|    b: int = 2",
        "@@ C| a: int = 1|+n: int = 0| b: int = 2",
        "class C:|    a: int = 1|    'on a'|    n: int = 0 #|    b: int = 2",
    ),
    "text over lines, in a block": (
        "if a:|    g(a)",
        ' if a:|     g(a)|+    x = """p|+    q"""|+    h(|+        "r"|+        "s"|+    )',
        'if a:|    g(a)|    x = """p|    q""" #|    h(|        "r"|        "s"|    ) #',
    ),
    "text over lines": ('g("""x| y""")', ' g("""x|  y""")|+h("""p|+q""")', 'g("""x| y""")|h("""p|q""") #'),
}

HEADERS = {
    "the last keyword that goes": (
        "def h(a, *, b):|    g(a)",
        "-def h(a, *, b):|+def h(a):|     ...",
        "def h(a, ): #|    g(a)",
    ),
    "the last one before the slash that goes": (
        "def h(b, /, a):|    g(a)",
        "-def h(b, /, a):|+def h(a):|     ...",
        "def h(a): #|    g(a)",
    ),
    "a keyword behind a star that comes": (
        "def h(a):|    g(a)",
        "-def h(a):|+def h(a, *, b=1):|     ...",
        "def h(a, *, b=1): #|    g(a)",
    ),
    "if": (
        "if (a  # c|    ):|    b(1)  # note",
        "-if a:|+if a and c:|     ...",
        "if (a and c  # c|    ): #|    b(1)  # note",
    ),
    "elif": (
        "if a:|    g(1)|elif b:|    g(2)",
        " if a:|     ...|-elif b:|+elif c:|     ...",
        "if a:|    g(1)|elif c: #|    g(2)",
    ),
    "for": ("for i in f(a):|    g(i)", "-for i in f(a):|+for i in f(a + 1):|     ...", "for i in f(a + 1): #|    g(i)"),
    "while": ("while a:|    g(a)", "-while a:|+while b:|     ...", "while b: #|    g(a)"),
    "with": (
        "with f(a) as b:|    g(b)",
        "-with f(a) as b:|+with f(a, 'r') as b:|     ...",
        "with f(a, 'r') as b: #|    g(b)",
    ),
    "except": (
        "try:|    a|except A:|    b",
        " try:|     ...|-except A:|+except B:|     ...",
        "try:|    a|except B: #|    b",
    ),
    "parameter": (
        "def f(|    a,  # first|    z=0,|):|    b",
        "-def f(a):|+def f(a, n: int = 3):|     ...",
        "def f(|    a,  # first|    n: int = 3,|    z=0,|): #|    b",
    ),
    "parameters behind one another": (
        "def f(a): b",
        "-def f(a):|+def f(a, n=1, m=2):|     ...",
        "def f(a, n=1, m=2): b #",
    ),
    "keyword-only parameter": (
        "def f(a, c=1): b",
        "-def f(a):|+def f(a, *, n=3):|     ...",
        "def f(a, c=1, *, n=3): b #",
    ),
    "parameter that goes": ("def f(a, b, c): a", "-def f(b):|+def f():|     ...", "def f(a, c): a #"),
    "default": ("def f(a, b=2): a", "-def f(b=2):|+def f(b=3):|     ...", "def f(a, b=3): a #"),
    "return type": ("def f(a) -> A:|    b", "-def f() -> A:|+def f() -> B:|     ...", "def f(a) -> B: #|    b"),
    "decorator": ("@x|def f(a):|    b", "-@x| def f():|     ...", "def f(a): #|    b"),
    "base": ("class C(A):|    x = 1", "-class C(A):|+class C(A, B):|     ...", "class C(A, B): #|    x = 1"),
    "header and body": (
        "if a:|    g(1)|h(1)",
        "-if a:|+if b:|     g(1)|+    g(2)",
        "if b: #|    g(1)|    g(2) #|h(1)",
    ),
}

WITHIN = {
    "in an f-string": ('x = f"{a} {g(b)!r}"', "-g(b)|+h(b)", 'x = f"{a} {h(b)!r}" #'),
    "in the pattern's guard": (
        "match a:|    case b if g(b):|        c",
        "-g(b)|+h(b)",
        "match a:|    case b if h(b): #|        c",
    ),
    "expression": ("x = f(a, g(b))", "-g(b)|+g(c)", "x = f(a, g(c)) #"),
    "expression, wrapped": ("x = f(a)", "-f(a)|+g(f(a))", "x = g(f(a)) #"),
    "of an f-string": ("f(f'{a} b')", '-f(f"{a} b")|+f(f"{a} c")', 'f(f"{a} c") #'),
    "keyword": ("g(a, j=1)", " g(|     ...,|+    k=3,| )", "g(a, j=1, k=3) #"),
    "keyword, before **": ("g(a, **b)", " g(|     ...,|+    k=3,| )", "g(a, k=3, **b) #"),
    "keyword behind another": (
        "g(|    a,|    j=1,|    l=2,|)",
        " g(|     ...|     j=1,|+    k=3,|     ...| )",
        "g(|    a,|    j=1,|    k=3,|    l=2,|) #",
    ),
    "keywords in any order": ("g(a, l=2, j=1)", "-g(a, j=1, l=2)|+g(a)", "g(a) #"),
    "argument changed": (
        "g(|    a,|    k=2,  # two|)",
        " g(|     ...,|-    k=2,|+    k=3,| )",
        "g(|    a,|    k=3,  # two|) #",
    ),
    "keywords that others replace": (
        "g(x, a=1, b=2, e=5)",
        " g(|     ...|-    a=1,|-    b=2,|+    c=3,|+    d=4,|     ...| )",
        "g(x, c=3, d=4, e=5) #",
    ),
    "the last keyword, a line each": (
        "g(|    a,  # one|    k=2,  # two|)",
        " g(|     ...,|-    k=2,| )",
        "g(|    a,  # one|) #",
    ),
    "the last keyword, no comma behind it": ("g(|    a,|    k=2|)", " g(|     ...,|-    k=2,| )", "g(|    a|) #"),
    "the last entries, by others": (
        "L = [|    1,  # one|    2,|]",
        " L = [|     1,|-    2,|+    3,|+    4,| ]",
        "L = [|    1,  # one|    3,|    4,|] #",
    ),
    "positional argument": ("g(a, b)", " g(|     a,|+    c,|     ...| )", "g(a, c, b) #"),
    "dict entry": (
        "D = {|    'a': 1,|    'b': 2,|}",
        " D = {|     ...,|     'b': 2,|+    'c': 3,| }",
        "D = {|    'a': 1,|    'b': 2,|    'c': 3,|} #",
    ),
    "dict entry, a comment behind": (
        "D = {|    'a': 1,|    'b': 2,  # two|}",
        " D = {|     ...,|     'b': 2,|+    'c': 3,| }",
        "D = {|    'a': 1,|    'b': 2,  # two|    'c': 3,|} #",
    ),
    "dict entry in the middle": (
        "D = {|    'a': 1,|    'z': 9,|}",
        " D = {|     'a': 1,|+    'c': 3,|     ...| }",
        "D = {|    'a': 1,|    'c': 3,|    'z': 9,|} #",
    ),
    "dict value": ("D = {'a': 1, 'b': 2}", " D = {|     ...|-    'b': 2,|+    'b': 3,| }", "D = {'a': 1, 'b': 3} #"),
    "list entry": ("L = ['a', 'b']", " L = [|     ...,|     'b',|+    'c',| ]", "L = ['a', 'b', 'c'] #"),
    "list entry that goes": ("L = ['a', 'b', 'c']", " L = [|     ...,|-    'b',|     ...| ]", "L = ['a', 'c'] #"),
    "set entry": ("S = {|    a,|}", " S = {|     a,|+    b,| }", "S = {|    a,|    b,|} #"),
    "tuple entry": ("T = (a, b)", " T = (|     ...|     b,|+    c,| )", "T = (a, b, c) #"),
    "in a conditional expression": (
        "x = g(a, k=1) if b else h(a)",
        "-x = g(a, k=1) if b else h(|+x = g(a, k=2) if b else h(|     a| )",
        "x = g(a, k=2) if b else h(a) #",
    ),
    "an entry in a conditional expression": (
        "x = (|    g(|        a,|        k=1,|    )|    if a|    else b|)",
        " x = (|     g(|         a,|+        c,|+        m=2,|         k=1,|     )|     if a|     else b| )",
        "x = (|    g(|        a,|        c,|        m=2,|        k=1,|    )|    if a|    else b|) #",
    ),
    "in a lambda": (
        "x = f(lambda: g(a, 1))",
        " x = f(|-    lambda: g(a, 1),|+    lambda: g(a, 2),| )",
        "x = f(lambda: g(a, 2)) #",
    ),
    "one more index": (
        "T = L[|    'a',|    'b',|]",
        " T = L[|     'a',|+    'c',|     'b',| ]",
        "T = L[|    'a',|    'c',|    'b',|] #",
    ),
    "another name among those that are set": ("_, x = g(a)", "-_, x = g(|+_, y = g(|     a| )", "_, y = g(a) #"),
    "an index is no entry": ("g(a[..., 0])", "-a[..., 0]|+a[..., 1]", "g(a[..., 1]) #"),
}

VARIABLES = {
    "an expression": (
        "t = f(a + 1)|g(t)",
        " $T = f($X)|+$T = h($T, $X * 2)| g($T)",
        "t = f(a + 1)|t = h(t, (a + 1) * 2) #|g(t)",
    ),
    "in a header": (
        "for i in f(n):|    g(i)",
        " for $I in f($N):|+    h($I, $N)|     g($I)",
        "for i in f(n):|    h(i, n) #|    g(i)",
    ),
    "in a replaced expression": ("x = f(a.b, c)", "-f($X, $Y)|+h($Y, $X)", "x = h(c, a.b) #"),
    "the same one throughout": ("f(a, b)|f(c, c)", "-f($X, $X)|+g($X)", "f(a, b)|g(c) #"),
    "one that goes deeper": (
        "x = f(|    a + 1,|    b,|)",
        " x = f(|-    a + $X,|+    a + g($X),|     b,| )",
        "x = f(|    a + g(1),|    b,|) #",
    ),
    "no variable in a string": ("g('$HOME')", " g('$HOME')|+h('$PATH', 1)", "g('$HOME')|h('$PATH', 1) #"),
}
