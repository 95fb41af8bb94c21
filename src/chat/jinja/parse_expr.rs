//! Expressions of the grammar, from the loosest binding to the tightest.

use super::ast::*;
use super::fault::{Fault, Kind, Result};
use super::lexer::Tok;
use super::limits::MAX_NAMED;
use super::parser::Parser;

impl<'s> Parser<'s> {
    /// An expression, or several with commas between them: a tuple. `ends` are names that end the
    /// tuple.
    pub(super) fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Result<Expr> {
        let line = self.line();
        let mut items = Vec::new();
        let mut tuple = false;
        while !self.is_tuple_end(ends) {
            items.push(self.expression(conditional)?);
            if !self.skip_op(",") {
                break;
            }
            tuple = true;
        }
        match items.len() {
            1 if !tuple => Ok(items.remove(0)),
            0 => self.fail(format!(
                "expected an expression, found {}",
                self.tok().describe()
            )),
            _ => Ok(expr(line, ExprKind::Tuple(items))),
        }
    }

    /// One expression. `x if y else z` is allowed only if `conditional`.
    pub(super) fn expression(&mut self, conditional: bool) -> Result<Expr> {
        self.nested(|p| match conditional {
            true => p.conditional(),
            false => p.or(),
        })
    }

    fn conditional(&mut self) -> Result<Expr> {
        let line = self.line();
        let mut first = self.or()?;
        // Each round makes the tree one level deeper.
        let mut rounds = 0;
        while self.skip_name("if") {
            rounds += 1;
            if rounds > 50 {
                return self.fail("more than 50 `if` without `else` in one expression");
            }
            let before = std::mem::replace(&mut self.lenient, true);
            let condition = self.or()?;
            let otherwise = match self.skip_name("else") {
                true => Some(self.expression(true)?),
                false => None,
            };
            self.lenient = before;
            let then = first;
            let cond = Cond {
                condition,
                then,
                otherwise,
            };
            first = expr(line, ExprKind::Cond(Box::new(cond)));
        }
        Ok(first)
    }

    fn or(&mut self) -> Result<Expr> {
        self.words("or", ExprKind::Or, |p| {
            p.words("and", ExprKind::And, Self::not)
        })
    }

    /// One operand, or several with a word between them.
    fn words(
        &mut self,
        word: &str,
        kind: fn(Vec<Expr>) -> ExprKind,
        operand: impl Fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let line = self.line();
        let first = operand(self)?;
        if !self.is_name(word) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_name(word) {
            operands.push(operand(self)?);
        }
        Ok(expr(line, kind(operands)))
    }

    fn not(&mut self) -> Result<Expr> {
        let line = self.line();
        match self.skip_name("not") {
            true => {
                let operand = self.nested(Self::not)?;
                Ok(expr(line, ExprKind::Not(Box::new(operand))))
            }
            false => self.compare(),
        }
    }

    fn compare(&mut self) -> Result<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let cmp = match self.tok() {
                Tok::Op("==") => Cmp::Eq,
                Tok::Op("!=") => Cmp::Ne,
                Tok::Op("<") => Cmp::Lt,
                Tok::Op("<=") => Cmp::Le,
                Tok::Op(">") => Cmp::Gt,
                Tok::Op(">=") => Cmp::Ge,
                Tok::Name("in") => Cmp::In,
                Tok::Name("not") if matches!(self.next_tok(), Tok::Name("in")) => {
                    self.skip();
                    Cmp::NotIn
                }
                _ => break,
            };
            self.skip();
            rest.push((cmp, self.sum()?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(expr(line, ExprKind::Compare(Box::new(first), rest))),
        }
    }

    fn sum(&mut self) -> Result<Expr> {
        self.chain(&[("+", Op::Add), ("-", Op::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_op("~") {
            operands.push(self.product()?);
        }
        Ok(expr(line, ExprKind::Concat(operands)))
    }

    fn product(&mut self) -> Result<Expr> {
        let operators = [
            ("*", Op::Mul),
            ("/", Op::Div),
            ("//", Op::FloorDiv),
            ("%", Op::Mod),
        ];
        self.chain(&operators, |p| {
            p.chain(&[("**", Op::Pow)], |p| p.unary(true))
        })
    }

    fn chain(
        &mut self,
        operators: &[(&str, Op)],
        operand: impl Fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        let line = self.line();
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Tok::Op(found) = self.tok()
            && let Some((_, op)) = operators.iter().find(|(op, _)| op == found)
        {
            self.skip();
            rest.push((*op, operand(self)?));
        }
        match rest.is_empty() {
            true => Ok(first),
            false => Ok(expr(line, ExprKind::Chain(Box::new(first), rest))),
        }
    }

    fn unary(&mut self, filters: bool) -> Result<Expr> {
        let line = self.line();
        let sign: Option<fn(Box<Expr>) -> ExprKind> = match self.tok() {
            Tok::Op("-") => Some(ExprKind::Neg),
            Tok::Op("+") => Some(ExprKind::Pos),
            _ => None,
        };
        let first = match sign {
            Some(sign) => {
                self.skip();
                let operand = self.nested(|p| p.unary(false))?;
                expr(line, sign(Box::new(operand)))
            }
            None => self.primary()?,
        };
        let mut suffixes = Vec::new();
        self.postfix(&mut suffixes)?;
        if filters {
            self.filters_and_tests(&mut suffixes)?;
        }
        Ok(with_suffixes(first, suffixes))
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        let kind = match self.tok() {
            Tok::Name(name) => {
                self.skip();
                match *name {
                    "true" | "True" => ExprKind::Bool(true),
                    "false" | "False" => ExprKind::Bool(false),
                    "none" | "None" => ExprKind::None,
                    name => ExprKind::Name(self.name(name)),
                }
            }
            Tok::Str(first) => {
                self.skip();
                let mut text = first.clone();
                while let Tok::Str(more) = self.tok() {
                    text.push_str(more);
                    self.skip();
                }
                ExprKind::Text(self.text(&text))
            }
            Tok::Int(number) => {
                self.skip();
                ExprKind::Int(*number)
            }
            Tok::Float(number) => {
                self.skip();
                ExprKind::Float(*number)
            }
            Tok::Op("(") => {
                self.skip();
                let inside = match self.is_op(")") {
                    true => expr(line, ExprKind::Tuple(Vec::new())),
                    false => self.tuple(true, &[])?,
                };
                self.expect_op(")")?;
                return Ok(inside);
            }
            Tok::Op("[") => {
                self.skip();
                ExprKind::List(self.items("]", |p| p.expression(true))?)
            }
            Tok::Op("{") => {
                self.skip();
                let pair = |p: &mut Self| {
                    let key = p.expression(true)?;
                    p.expect_op(":")?;
                    Ok((key, p.expression(true)?))
                };
                ExprKind::Dict(self.items("}", pair)?)
            }
            other => return self.fail(format!("unexpected {}", other.describe())),
        };
        Ok(expr(line, kind))
    }

    /// The items before `close`, with commas between them, and perhaps one after the last.
    fn items<T>(&mut self, close: &str, item: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        while !self.is_op(close) {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.is_op(close) {
                    break;
                }
            }
            items.push(item(self)?);
        }
        self.skip();
        Ok(items)
    }

    /// Attributes, items and calls.
    fn postfix(&mut self, out: &mut Vec<Suffix>) -> Result<()> {
        loop {
            let line = self.line();
            let kind = match self.tok() {
                Tok::Op(".") => {
                    self.skip();
                    let kind = match self.tok() {
                        Tok::Name(name) => SuffixKind::Attr(self.text(name)),
                        Tok::Int(index) => SuffixKind::Item(expr(line, ExprKind::Int(*index))),
                        other => {
                            let found = other.describe();
                            return self.fail(format!("expected a name, found {found}"));
                        }
                    };
                    self.skip();
                    kind
                }
                Tok::Op("[") => {
                    self.skip();
                    self.subscript(line)?
                }
                Tok::Op("(") => SuffixKind::Call(self.args()?),
                _ => return Ok(()),
            };
            out.push(Suffix { line, kind });
        }
    }

    fn subscript(&mut self, line: u32) -> Result<SuffixKind> {
        let mut bounds = [None, None, None];
        let mut colons = 0;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if self.skip_op(":") {
                colons += 1;
                if colons > 2 {
                    return self.fail("a slice has at most two `:`");
                }
            } else if self.skip_op(",") {
                if colons > 0 {
                    return self.fail("a tuple of slices has no meaning here");
                }
                if let Some(item) = bounds[0].take() {
                    items.push(item);
                }
            } else if bounds[colons].is_some() {
                return self.fail(format!("expected `]`, found {}", self.tok().describe()));
            } else {
                bounds[colons] = Some(self.expression(true)?);
            }
        }
        self.skip();
        if colons > 0 {
            return Ok(SuffixKind::Slice(Box::new(bounds)));
        }
        match (items.is_empty(), bounds[0].take()) {
            (true, Some(item)) => Ok(SuffixKind::Item(item)),
            (_, last) => {
                items.extend(last);
                Ok(SuffixKind::Item(expr(line, ExprKind::Tuple(items))))
            }
        }
    }

    fn args(&mut self) -> Result<Args> {
        self.expect_op("(")?;
        let mut args = Args::default();
        let mut first = true;
        while !self.is_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            first = false;
            let ok = if self.skip_op("*") {
                let ok = args.star.is_none() && args.double_star.is_none();
                args.star = Some(Box::new(self.expression(true)?));
                ok
            } else if self.skip_op("**") {
                let ok = args.double_star.is_none();
                args.double_star = Some(Box::new(self.expression(true)?));
                ok
            } else if let Tok::Name(name) = self.tok()
                && matches!(self.next_tok(), Tok::Op("="))
            {
                self.skip();
                self.skip();
                let key = self.text(name);
                if args.keyword.len() == MAX_NAMED {
                    let message = format!("a call with more than {MAX_NAMED} named arguments");
                    return Err(Fault::at(self.line(), Kind::Limit, message));
                }
                if args.keyword.iter().any(|(other, _)| *other == key) {
                    return self.fail(format!("the argument `{name}` is given twice"));
                }
                args.keyword.push((key, self.expression(true)?));
                args.double_star.is_none()
            } else {
                args.positional.push(self.expression(true)?);
                args.star.is_none() && args.double_star.is_none() && args.keyword.is_empty()
            };
            if !ok {
                return self.fail("arguments in an order that is not allowed");
            }
        }
        self.skip();
        Ok(args)
    }

    fn filters_and_tests(&mut self, out: &mut Vec<Suffix>) -> Result<()> {
        loop {
            let line = self.line();
            match self.tok() {
                Tok::Op("|") => self.filter_chain(out, false)?,
                Tok::Name("is") => {
                    let test = self.test()?;
                    out.push(Suffix { line, kind: test });
                }
                Tok::Op("(") => {
                    let kind = SuffixKind::Call(self.args()?);
                    out.push(Suffix { line, kind });
                }
                _ => return Ok(()),
            }
        }
    }

    /// `| name(...) | name`. If `inline`, the first name has no `|` before it.
    pub(super) fn filter_chain(&mut self, out: &mut Vec<Suffix>, mut inline: bool) -> Result<()> {
        while inline || self.skip_op("|") {
            inline = false;
            let line = self.line();
            let name = self.dotted()?;
            self.check_known(false, &name)?;
            let args = match self.is_op("(") {
                true => self.args()?,
                false => Args::default(),
            };
            let kind = SuffixKind::Filter(self.text(&name), args);
            out.push(Suffix { line, kind });
        }
        Ok(())
    }

    fn dotted(&mut self) -> Result<String> {
        let mut name = self.expect_name()?.to_owned();
        while self.skip_op(".") {
            name.push('.');
            name.push_str(self.expect_name()?);
        }
        Ok(name)
    }

    fn test(&mut self) -> Result<SuffixKind> {
        self.skip();
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        self.check_known(true, &name)?;
        let mut args = Args::default();
        match self.tok() {
            Tok::Op("(") => args = self.args()?,
            Tok::Name("else" | "or" | "and") => {}
            Tok::Name("is") => return self.fail("tests with `is` cannot be chained"),
            Tok::Name(_) | Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{") => {
                let operand = self.nested(|p| {
                    let first = p.primary()?;
                    let mut suffixes = Vec::new();
                    p.postfix(&mut suffixes)?;
                    Ok(with_suffixes(first, suffixes))
                })?;
                args.positional.push(operand);
            }
            _ => {}
        }
        let name = self.text(&name);
        Ok(match negated {
            true => SuffixKind::NotTest(name, args),
            false => SuffixKind::Test(name, args),
        })
    }
}

fn expr(line: u32, kind: ExprKind) -> Expr {
    Expr { line, kind }
}

fn with_suffixes(first: Expr, suffixes: Vec<Suffix>) -> Expr {
    match suffixes.is_empty() {
        true => first,
        false => expr(first.line, ExprKind::Postfix(Box::new(first), suffixes)),
    }
}
