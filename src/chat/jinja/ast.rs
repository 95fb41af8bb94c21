//! A template as a tree. Expressions that jinja2 nests to the left are lists here (`a + b + c`,
//! `a.b.c`, `a | f | g`). So the depth of the tree is the nesting that the parser counts.

/// An index into [`Tree::names`].
pub type Name = u32;

/// A template that was read.
#[derive(Debug, Default)]
pub struct Tree {
    /// What it does.
    pub body: Vec<Stmt>,
    /// Names of variables.
    pub names: Vec<String>,
    /// Texts: string literals, attributes, keywords.
    pub texts: Vec<String>,
    /// Macros and bodies of `call`.
    pub macros: Vec<Macro>,
    /// Bodies of `for`.
    pub loops: Vec<For>,
}

/// A statement and its line.
#[derive(Debug)]
pub struct Stmt {
    /// From 1.
    pub line: u32,
    /// What it does.
    pub kind: StmtKind,
}

/// What a statement does.
#[derive(Debug)]
pub enum StmtKind {
    /// Text outside of tags.
    Data(String),
    /// `{{ }}` or `{% print %}`
    Print(Expr),
    /// Conditions with their bodies, and the `else`.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    /// An index into [`Tree::loops`].
    For(usize),
    /// `set` with `=`
    Set(Target, Expr),
    /// `set` with a body, which goes through filters.
    SetBlock(Target, Vec<Suffix>, Vec<Stmt>),
    /// `with`
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    /// An index into [`Tree::macros`].
    Macro(usize),
    /// A call with a `caller`, an index into [`Tree::macros`].
    Call(Expr, usize),
    /// `filter`
    Filter(Vec<Suffix>, Vec<Stmt>),
    /// `generation`: a scope that renders its body.
    Generation(Vec<Stmt>),
    /// `break`
    Break,
    /// `continue`
    Continue,
}

/// `for`
#[derive(Debug)]
pub struct For {
    /// What an element is assigned to.
    pub target: Target,
    /// The expression whose elements the loop goes through.
    pub iter: Expr,
    /// The condition after `if`: elements for which it is false are left out.
    pub test: Option<Expr>,
    /// `recursive`: the body may call `loop`.
    pub recursive: bool,
    /// For each element.
    pub body: Vec<Stmt>,
    /// The body that is rendered if there is no element.
    pub otherwise: Vec<Stmt>,
}

/// A macro, or the body of a `call`.
#[derive(Debug)]
pub struct Macro {
    /// Its name; none for the body of a `call`.
    pub name: Option<Name>,
    /// Parameters with their defaults.
    pub params: Vec<(Name, Option<Expr>)>,
    /// What it renders.
    pub body: Vec<Stmt>,
    /// Which of `varargs`, `kwargs` and `caller` the body uses without a parameter of that name.
    pub takes: Takes,
}

/// Names that a macro has without declaring them, if its body uses them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Takes {
    /// Further arguments, a tuple.
    pub varargs: bool,
    /// Further keyword arguments, a dict.
    pub kwargs: bool,
    /// The body of a `call`.
    pub caller: bool,
}

/// What is assigned to.
#[derive(Debug)]
pub enum Target {
    /// A variable.
    Name(Name),
    /// An attribute, which is an index into [`Tree::texts`], of a namespace.
    Attr(Name, usize),
    /// The elements of a sequence.
    Tuple(Vec<Target>),
}

/// An expression and its line.
#[derive(Debug)]
pub struct Expr {
    /// From 1.
    pub line: u32,
    /// What it is.
    pub kind: ExprKind,
}

/// What an expression is.
#[derive(Debug)]
pub enum ExprKind {
    /// `none`
    None,
    /// `true`, `false`
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// A string, an index into [`Tree::texts`].
    Text(usize),
    /// A variable.
    Name(Name),
    /// `[a, b]`
    List(Vec<Expr>),
    /// `(a, b)`
    Tuple(Vec<Expr>),
    /// `{a: b}`
    Dict(Vec<(Expr, Expr)>),
    /// `not a`
    Not(Box<Expr>),
    /// `-a`
    Neg(Box<Expr>),
    /// `+a`
    Pos(Box<Expr>),
    /// Operators of one precedence, from the left.
    Chain(Box<Expr>, Vec<(Op, Expr)>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    /// `a and b and c`
    And(Vec<Expr>),
    /// `a or b or c`
    Or(Vec<Expr>),
    /// `a < b < c`
    Compare(Box<Expr>, Vec<(Cmp, Expr)>),
    /// `then if condition else otherwise`
    Cond(Box<Cond>),
    /// `a.b[c](d) | f is g`
    Postfix(Box<Expr>, Vec<Suffix>),
}

/// A conditional expression.
#[derive(Debug)]
pub struct Cond {
    /// The condition.
    pub condition: Expr,
    /// The value if the condition is true.
    pub then: Expr,
    /// The value otherwise; undefined if it is missing.
    pub otherwise: Option<Expr>,
}

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// What follows an expression, with its line.
#[derive(Debug)]
pub struct Suffix {
    /// From 1.
    pub line: u32,
    /// What it is.
    pub kind: SuffixKind,
}

/// What follows an expression. Texts are indices into [`Tree::texts`].
#[derive(Debug)]
pub enum SuffixKind {
    /// `.name`
    Attr(usize),
    /// `[expr]`
    Item(Expr),
    /// `[a:b:c]`
    Slice(Box<[Option<Expr>; 3]>),
    /// `(...)`
    Call(Args),
    /// `| name(...)`
    Filter(usize, Args),
    /// `is name(...)`
    Test(usize, Args),
    /// `is not name(...)`
    NotTest(usize, Args),
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct Args {
    /// By position.
    pub positional: Vec<Expr>,
    /// By name, an index into [`Tree::texts`].
    pub keyword: Vec<(usize, Expr)>,
    /// `*list`
    pub star: Option<Box<Expr>>,
    /// `**dict`
    pub double_star: Option<Box<Expr>>,
}
