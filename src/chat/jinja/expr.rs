//! Expressions: operators, attributes, elements, slices, and what follows a value.

use super::arguments::Arguments;
use super::ast::*;
use super::evaluator::Evaluator;
use super::fault::{Fault, Kind, Result, evaluation};
use super::limits::MAX_NAMED;
use super::text::Builder;
use super::value::{Value, equal, order};
use super::{functions, lookup, ops, predicates, repr};
use std::cmp::Ordering;

impl<'t> Evaluator<'t, '_> {
    /// The value of an expression.
    pub(super) fn eval(&mut self, expr: &'t Expr) -> Result<Value> {
        self.meter.step()?;
        Ok(match &expr.kind {
            ExprKind::None => Value::None,
            ExprKind::Bool(b) => Value::Bool(*b),
            ExprKind::Int(i) => Value::Int(*i),
            ExprKind::Float(f) => Value::Float(*f),
            ExprKind::Text(index) => Value::Text(self.literal(*index)?),
            ExprKind::Name(name) => self.variable(*name)?,
            kind => {
                self.line = expr.line;
                return self.deeper(|e| e.compound(kind));
            }
        })
    }

    fn compound(&mut self, kind: &'t ExprKind) -> Result<Value> {
        match kind {
            ExprKind::Postfix(first, suffixes) => {
                let first = self.eval(first)?;
                self.suffixes(first, suffixes, None)
            }
            ExprKind::Chain(first, rest) => self.chain(first, rest),
            ExprKind::Concat(operands) => self.concat(operands),
            ExprKind::Compare(first, rest) => self.compare(first, rest),
            ExprKind::Not(operand) => Ok(Value::Bool(!self.eval(operand)?.truth())),
            ExprKind::And(operands) => self.until(operands, false),
            ExprKind::Or(operands) => self.until(operands, true),
            ExprKind::Cond(cond) => match self.eval(&cond.condition)?.truth() {
                true => self.eval(&cond.then),
                false => match &cond.otherwise {
                    Some(otherwise) => self.eval(otherwise),
                    None => Ok(Value::undefined(
                        "an `if` expression was false and has no `else`",
                    )),
                },
            },
            ExprKind::List(items) => Value::list(self.all(items)?),
            ExprKind::Tuple(items) => Value::tuple(self.all(items)?),
            ExprKind::Dict(pairs) => {
                let mut entries = self.meter.list(pairs.len())?;
                for (key, value) in pairs {
                    entries.push((self.eval(key)?, self.eval(value)?));
                }
                Value::dict(&mut self.meter, entries)
            }
            ExprKind::Neg(operand) => {
                let operand = self.eval(operand)?;
                ops::negate(&operand)
            }
            ExprKind::Pos(operand) => {
                let operand = self.eval(operand)?;
                ops::plus(&operand)
            }
            _ => Ok(Value::None),
        }
    }

    fn all(&mut self, items: &'t [Expr]) -> Result<Vec<Value>> {
        let mut values = self.meter.list(items.len())?;
        for item in items {
            values.push(self.eval(item)?);
        }
        Ok(values)
    }

    /// The first operand whose truth is `wanted`; otherwise the last operand.
    fn until(&mut self, operands: &'t [Expr], wanted: bool) -> Result<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.eval(operand)?;
            if value.truth() == wanted {
                break;
            }
        }
        Ok(value)
    }

    /// Applies operators from the left. Texts that are added one after another are copied only
    /// once.
    fn chain(&mut self, first: &'t Expr, rest: &'t [(Op, Expr)]) -> Result<Value> {
        let mut value = self.eval(first)?;
        let mut sum: Option<Builder> = None;
        for (op, operand) in rest {
            let operand = self.eval(operand)?;
            match (&sum, &value, op, &operand) {
                (Some(_), _, Op::Add, Value::Text(more)) if !more.is_markup() => {
                    if let Some(sum) = &mut sum {
                        sum.push_text(&mut self.meter, more)?;
                    }
                }
                (None, Value::Text(left), Op::Add, Value::Text(right))
                    if !left.is_markup() && !right.is_markup() =>
                {
                    let mut start = Builder::default();
                    start.push_text(&mut self.meter, left)?;
                    start.push_text(&mut self.meter, right)?;
                    sum = Some(start);
                }
                _ => {
                    if let Some(sum) = sum.take() {
                        value = Value::Text(sum.finish());
                    }
                    value = ops::arithmetic(self, *op, &value, &operand)?;
                }
            }
        }
        Ok(match sum {
            Some(sum) => Value::Text(sum.finish()),
            None => value,
        })
    }

    fn concat(&mut self, operands: &'t [Expr]) -> Result<Value> {
        let mut all = Builder::default();
        for operand in operands {
            let value = self.eval(operand)?;
            repr::print(&mut self.meter, &mut all, &value)?;
        }
        Ok(Value::Text(all.finish()))
    }

    fn compare(&mut self, first: &'t Expr, rest: &'t [(Cmp, Expr)]) -> Result<Value> {
        let mut left = self.eval(first)?;
        for (cmp, right) in rest {
            let right = self.eval(right)?;
            if !self.compares(*cmp, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// Whether `left cmp right`.
    pub(super) fn compares(&mut self, cmp: Cmp, left: &Value, right: &Value) -> Result<bool> {
        let ordering = match cmp {
            Cmp::Eq => return equal(left, right, &mut self.meter),
            Cmp::Ne => return Ok(!equal(left, right, &mut self.meter)?),
            Cmp::In => return self.contains(right, left),
            Cmp::NotIn => return Ok(!self.contains(right, left)?),
            _ => order(left, right, &mut self.meter)?,
        };
        Ok(match (cmp, ordering) {
            (_, None) => false,
            (Cmp::Lt, Some(ordering)) => ordering == Ordering::Less,
            (Cmp::Le, Some(ordering)) => ordering != Ordering::Greater,
            (Cmp::Gt, Some(ordering)) => ordering == Ordering::Greater,
            (_, Some(ordering)) => ordering != Ordering::Less,
        })
    }

    /// Python's `item in container`.
    pub(super) fn contains(&mut self, container: &Value, item: &Value) -> Result<bool> {
        match (container, item) {
            (Value::Text(text), Value::Text(part)) => {
                self.meter.look_at(text.as_str().len())?;
                Ok(text.as_str().contains(part.as_str()))
            }
            (Value::Text(_), other) => {
                let other = other.type_name();
                evaluation(format!("a {other} is not searched in a str"))
            }
            (Value::Dict(dict) | Value::View(dict, super::value::View::Keys), key) => {
                Ok(dict.get(&mut self.meter, key)?.is_some())
            }
            (Value::Range(range), _) if item.index().is_some() => {
                let from = item.index().and_then(|i| i.checked_sub(range.start));
                let place = from.filter(|i| i.checked_rem(range.step) == Some(0));
                // A number that is farther from the start than an integer can say is outside of the
                // range.
                Ok(place.is_some_and(|i| (0..range.len).contains(&(i / range.step))))
            }
            _ => {
                let mut source = self.iterate(container)?;
                while let Some(element) = self.next(&mut source)? {
                    if equal(&element, item, &mut self.meter)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    /// The value of `value` with its suffixes. If the last suffix is a call, it also gets `caller`.
    pub(super) fn suffixes(
        &mut self,
        mut value: Value,
        suffixes: &'t [Suffix],
        mut caller: Option<Value>,
    ) -> Result<Value> {
        for (i, suffix) in suffixes.iter().enumerate() {
            self.meter.step()?;
            self.line = suffix.line;
            value = match &suffix.kind {
                SuffixKind::Attr(name) => {
                    let name = self.literal(*name)?;
                    lookup::attr(self, &value, &name)?
                }
                SuffixKind::Item(key) => {
                    let key = self.eval(key)?;
                    lookup::item(self, &value, &key)?
                }
                SuffixKind::Slice(bounds) => {
                    let mut values = [Value::None, Value::None, Value::None];
                    for (value, bound) in values.iter_mut().zip(bounds.iter()) {
                        if let Some(bound) = bound {
                            *value = self.eval(bound)?;
                        }
                    }
                    lookup::slice(self, &value, &values)?
                }
                SuffixKind::Call(args) => {
                    let mut args = self.arguments(args)?;
                    if i + 1 == suffixes.len()
                        && let Some(caller) = caller.take()
                    {
                        let key = super::text::short("caller");
                        args.keyword.push((key, caller));
                    }
                    self.line = suffix.line;
                    self.deeper(|e| functions::call(e, &value, args))?
                }
                SuffixKind::Filter(name, args) => {
                    let args = self.arguments(args)?;
                    self.line = suffix.line;
                    let name = &self.tree.texts[*name];
                    self.deeper(|e| e.filter(name, value, args))?
                }
                SuffixKind::Test(name, args) | SuffixKind::NotTest(name, args) => {
                    let args = self.arguments(args)?;
                    let name = &self.tree.texts[*name];
                    let holds = predicates::holds(self, name, &value, args)?;
                    Value::Bool(holds == matches!(suffix.kind, SuffixKind::Test(..)))
                }
            };
        }
        Ok(value)
    }

    fn arguments(&mut self, args: &'t Args) -> Result<Arguments> {
        let mut positional = self.all(&args.positional)?;
        let mut keyword = self.meter.list(args.keyword.len())?;
        for (name, value) in &args.keyword {
            let value = self.eval(value)?;
            keyword.push((self.literal(*name)?, value));
        }
        if let Some(star) = &args.star {
            let value = self.eval(star)?;
            positional.extend(self.elements(&value)?);
        }
        if let Some(stars) = &args.double_star {
            let Value::Dict(dict) = self.eval(stars)? else {
                return evaluation("behind `**` there must be a dict");
            };
            for (key, value) in dict.entries() {
                let Value::Text(key) = key else {
                    return evaluation("names of arguments must be texts");
                };
                if keyword.len() == MAX_NAMED {
                    let message = format!("a call with more than {MAX_NAMED} named arguments");
                    return Err(Fault::at(0, Kind::Limit, message));
                }
                self.meter.look_through(keyword.len())?;
                if keyword
                    .iter()
                    .any(|(name, _)| name.as_str() == key.as_str())
                {
                    let key = key.as_str();
                    return evaluation(format!("the argument `{key}` is given twice"));
                }
                self.meter
                    .push(&mut keyword, (key.clone(), value.clone()))?;
            }
        }
        Ok(Arguments {
            positional,
            keyword,
        })
    }

    /// The fault of `raise_exception`.
    pub(super) fn raise(&mut self, message: &Value) -> Result<Value> {
        let message = repr::string(&mut self.meter, message)?;
        Err(Fault::at(0, Kind::Raised, message.as_str()))
    }
}
