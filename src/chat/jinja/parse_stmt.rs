//! Statements: the contents of `{% %}` with their bodies, and the targets that they assign to.

use super::ast::*;
use super::fault::{Fault, Kind, Result};
use super::lexer::Tok;
use super::parser::Parser;

impl<'s> Parser<'s> {
    /// Statements up to a block that begins with one of `ends`, which stays unread. If `ends` is
    /// empty, statements up to the end of the template.
    pub(super) fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.tok() {
                Tok::Data(text) => {
                    self.skip();
                    let kind = StmtKind::Data((*text).to_owned());
                    body.push(Stmt { line, kind });
                }
                Tok::PrintBegin => {
                    self.skip();
                    let kind = StmtKind::Print(self.tuple(true, &[])?);
                    self.expect(Tok::PrintEnd)?;
                    body.push(Stmt { line, kind });
                }
                Tok::BlockBegin => {
                    if let Tok::Name(tag) = self.next_tok()
                        && ends.contains(tag)
                    {
                        self.skip();
                        return Ok(body);
                    }
                    self.skip();
                    self.nested(|p| p.statement(line, &mut body))?;
                    self.expect(Tok::BlockEnd)?;
                }
                Tok::End if ends.is_empty() => return Ok(body),
                other => {
                    let wanted = ends.join("` or `");
                    let found = other.describe();
                    return self.fail(format!("expected `{wanted}`, found {found}"));
                }
            }
        }
    }

    /// A body after the head of a block: statements up to one of `ends`. `lenient`: the body is
    /// inside of an `if`.
    fn body(&mut self, ends: &[&str], lenient: bool) -> Result<Vec<Stmt>> {
        self.skip_op(":");
        self.expect(Tok::BlockEnd)?;
        let before = std::mem::replace(&mut self.lenient, lenient);
        let body = self.statements(ends)?;
        self.lenient = before;
        Ok(body)
    }

    /// A body up to `end`, which is read too.
    fn whole_body(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let body = self.body(&[end], false)?;
        self.skip();
        Ok(body)
    }

    fn statement(&mut self, line: u32, out: &mut Vec<Stmt>) -> Result<()> {
        let tag = self.expect_name()?;
        let kind = match tag {
            "if" => self.if_()?,
            "for" => self.for_()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => {
                let name = self.expect_name()?;
                let name = self.name(name);
                StmtKind::Macro(self.macro_(Some(name), "endmacro")?)
            }
            "call" => self.call_block()?,
            "filter" => {
                let mut filters = Vec::new();
                self.filter_chain(&mut filters, true)?;
                StmtKind::Filter(filters, self.whole_body("endfilter")?)
            }
            "generation" => StmtKind::Generation(self.whole_body("endgeneration")?),
            "print" => {
                while *self.tok() != Tok::BlockEnd {
                    if !out.is_empty() && matches!(self.tok(), Tok::Op(",")) {
                        self.skip();
                    }
                    let kind = StmtKind::Print(self.expression(true)?);
                    out.push(Stmt { line, kind });
                }
                return Ok(());
            }
            "break" | "continue" if self.loops == 0 => {
                return self.fail(format!("`{tag}` outside of a loop"));
            }
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            "include" | "import" | "from" | "extends" | "block" | "autoescape" => {
                let message = format!("`{tag}` is not supported in chat templates");
                return Err(Fault::at(line, Kind::Unsupported, message));
            }
            _ => return self.fail(format!("unknown or misplaced tag `{tag}`")),
        };
        out.push(Stmt { line, kind });
        Ok(())
    }

    fn if_(&mut self) -> Result<StmtKind> {
        let mut branches = Vec::new();
        let before = std::mem::replace(&mut self.lenient, true);
        let otherwise = loop {
            let condition = self.tuple(false, &[])?;
            let body = self.body(&["elif", "else", "endif"], true)?;
            branches.push((condition, body));
            match self.expect_name()? {
                "elif" => {}
                "else" => {
                    let body = self.body(&["endif"], true)?;
                    self.skip();
                    break body;
                }
                _ => break Vec::new(),
            }
        };
        self.lenient = before;
        Ok(StmtKind::If(branches, otherwise))
    }

    fn for_(&mut self) -> Result<StmtKind> {
        self.in_for += 1;
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.fail(format!("expected `in`, found {}", self.tok().describe()));
        }
        let iter = self.tuple(false, &["recursive"])?;
        let test = match self.skip_name("if") {
            true => Some(self.expression(true)?),
            false => None,
        };
        let recursive = self.skip_name("recursive");
        self.loops += 1;
        let body = self.body(&["endfor", "else"], false)?;
        self.loops -= 1;
        let otherwise = match self.expect_name()? {
            "else" => self.whole_body("endfor")?,
            _ => Vec::new(),
        };
        self.in_for -= 1;
        self.tree.loops.push(For {
            target,
            iter,
            test,
            recursive,
            body,
            otherwise,
        });
        Ok(StmtKind::For(self.tree.loops.len() - 1))
    }

    fn set(&mut self) -> Result<StmtKind> {
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            return Ok(StmtKind::Set(target, self.tuple(true, &[])?));
        }
        let mut filters = Vec::new();
        self.filter_chain(&mut filters, false)?;
        Ok(StmtKind::SetBlock(
            target,
            filters,
            self.whole_body("endset")?,
        ))
    }

    fn with(&mut self) -> Result<StmtKind> {
        let mut pairs = Vec::new();
        while *self.tok() != Tok::BlockEnd {
            if !pairs.is_empty() {
                self.expect_op(",")?;
            }
            let in_for = std::mem::take(&mut self.in_for); // its own `loop` is allowed
            let target = self.target(&[], false)?;
            self.in_for = in_for;
            self.expect_op("=")?;
            pairs.push((target, self.expression(true)?));
        }
        Ok(StmtKind::With(pairs, self.whole_body("endwith")?))
    }

    fn macro_(&mut self, name: Option<Name>, end: &str) -> Result<usize> {
        let mut params: Vec<(Name, Option<Expr>)> = Vec::new();
        // Names in parameters and defaults do not count as uses in the body.
        let outer = self.takes;
        let mut declared = Takes::default();
        if name.is_some() || self.is_op("(") {
            self.expect_op("(")?;
            while !self.is_op(")") {
                if !params.is_empty() {
                    self.expect_op(",")?;
                }
                let param = self.expect_name()?;
                match param {
                    "varargs" => declared.varargs = true,
                    "kwargs" => declared.kwargs = true,
                    "caller" => declared.caller = true,
                    _ => {}
                }
                let default = match self.skip_op("=") {
                    true => Some(self.expression(true)?),
                    false if params.last().is_some_and(|(_, default)| default.is_some()) => {
                        return self.fail("a parameter without a default follows one with it");
                    }
                    false => None,
                };
                let caller = param == "caller" && default.is_none();
                if caller {
                    return self.fail("the parameter `caller` must have a default");
                }
                params.push((self.name(param), default));
            }
            self.skip();
        }
        if name.is_none() {
            return self.call_body(params, outer, declared);
        }
        let (loops, in_for) = (std::mem::take(&mut self.loops), self.in_for);
        self.takes = Takes::default();
        let body = self.whole_body(end)?;
        (self.loops, self.in_for) = (loops, in_for);
        Ok(self.push_macro(name, params, body, outer, declared))
    }

    fn push_macro(
        &mut self,
        name: Option<Name>,
        params: Vec<(Name, Option<Expr>)>,
        body: Vec<Stmt>,
        outer: Takes,
        declared: Takes,
    ) -> usize {
        let used = self.takes;
        self.takes = Takes {
            varargs: outer.varargs | used.varargs,
            kwargs: outer.kwargs | used.kwargs,
            caller: outer.caller | used.caller,
        };
        self.tree.macros.push(Macro {
            name,
            params,
            body,
            takes: Takes {
                varargs: used.varargs && !declared.varargs,
                kwargs: used.kwargs && !declared.kwargs,
                caller: used.caller && !declared.caller,
            },
        });
        self.tree.macros.len() - 1
    }

    fn call_block(&mut self) -> Result<StmtKind> {
        let body = self.macro_(None, "endcall")?;
        // `call_body` leaves the call itself as the last parameter.
        let call = self.tree.macros[body].params.pop();
        match call {
            Some((_, Some(call))) => Ok(StmtKind::Call(call, body)),
            _ => self.fail("expected a call"),
        }
    }

    /// What follows the parameters of a `call` block. The call is returned as a last parameter.
    fn call_body(
        &mut self,
        mut params: Vec<(Name, Option<Expr>)>,
        outer: Takes,
        declared: Takes,
    ) -> Result<usize> {
        let call = self.expression(true)?;
        let is_call = match &call.kind {
            ExprKind::Postfix(_, suffixes) => matches!(
                suffixes.last(),
                Some(Suffix {
                    kind: SuffixKind::Call(_),
                    ..
                })
            ),
            _ => false,
        };
        if !is_call {
            return self.fail("expected a call");
        }
        let seen = self.takes;
        let loops = std::mem::take(&mut self.loops);
        self.takes = Takes::default();
        let body = self.whole_body("endcall")?;
        self.loops = loops;
        params.push((0, Some(call)));
        let outer = Takes {
            varargs: outer.varargs | seen.varargs,
            kwargs: outer.kwargs | seen.kwargs,
            caller: outer.caller | seen.caller,
        };
        Ok(self.push_macro(None, params, body, outer, declared))
    }

    /// The target of an assignment. `ends` are names that end a tuple.
    fn target(&mut self, ends: &[&str], namespaces: bool) -> Result<Target> {
        let mut targets = Vec::new();
        let mut tuple = false;
        loop {
            if self.is_tuple_end(ends) || (tuple && self.is_op("=")) {
                break;
            }
            targets.push(self.nested(|p| p.one_target(namespaces))?);
            if !self.skip_op(",") {
                break;
            }
            tuple = true;
        }
        match targets.len() {
            1 if !tuple => Ok(targets.remove(0)),
            0 => self.fail("expected something to assign to"),
            _ => Ok(Target::Tuple(targets)),
        }
    }

    fn one_target(&mut self, namespaces: bool) -> Result<Target> {
        if self.skip_op("(") {
            let target = self.target(&[], false)?;
            self.expect_op(")")?;
            return Ok(target);
        }
        let name = self.expect_name()?;
        if namespaces && self.skip_op(".") {
            let attr = self.expect_name()?;
            return Ok(Target::Attr(self.name(name), self.text(attr)));
        }
        let constants = ["true", "false", "none", "True", "False", "None"];
        if constants.contains(&name) || (name == "loop" && self.in_for > 0) {
            return self.fail(format!("`{name}` cannot be assigned to"));
        }
        Ok(Target::Name(self.name(name)))
    }
}
