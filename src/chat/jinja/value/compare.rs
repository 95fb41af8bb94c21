//! Numbers, and Python's comparisons of values.

use super::Value;
use crate::chat::jinja::fault::{Result, evaluation};
use crate::chat::jinja::limits::{Meter, STEP_BYTES};
use std::cmp::Ordering;

/// A number.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// As a float.
    pub fn float(self) -> f64 {
        match self {
            Number::Int(i) => i as f64,
            Number::Float(f) => f,
        }
    }

    fn order(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (Number::Float(a), Number::Float(b)) => a.partial_cmp(&b),
            (Number::Int(a), Number::Float(b)) => int_float(a, b),
            (Number::Float(a), Number::Int(b)) => int_float(b, a).map(Ordering::reverse),
        }
    }
}

/// Compares an integer with a float, without rounding the integer.
fn int_float(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() || b.abs() >= 1.7e38 {
        return (a as f64).partial_cmp(&b);
    }
    let whole = b.trunc();
    Some(match a.cmp(&(whole as i128)) {
        Ordering::Equal => whole.partial_cmp(&b)?,
        other => other,
    })
}

/// Python's `==`.
pub fn equal(a: &Value, b: &Value, meter: &mut Meter<'_>) -> Result<bool> {
    if let (Some(a), Some(b)) = (a.number(), b.number()) {
        return Ok(a.order(b) == Some(Ordering::Equal));
    }
    Ok(match (a, b) {
        (Value::None, Value::None) | (Value::Undefined(_), Value::Undefined(_)) => true,
        (Value::Text(a), Value::Text(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            if a.len() == b.len() && a.len() >= STEP_BYTES {
                meter.look_at(a.len())?;
            }
            a == b
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            if a.items.len() != b.items.len() {
                return Ok(false);
            }
            for (a, b) in a.items.iter().zip(&b.items) {
                meter.step()?;
                if !equal(a, b, meter)? {
                    return Ok(false);
                }
            }
            true
        }
        (Value::Dict(a), Value::Dict(b)) => {
            if a.entries().len() != b.entries().len() {
                return Ok(false);
            }
            for (key, value) in a.entries() {
                meter.step()?;
                match b.get(meter, key)? {
                    Some(other) if equal(value, other, meter)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Value::Range(a), Value::Range(b)) => {
            a.len == b.len
                && (a.len == 0 || (a.start == b.start && (a.len == 1 || a.step == b.step)))
        }
        (Value::Function(a), Value::Function(b)) => a == b,
        (Value::Namespace(a), Value::Namespace(b))
        | (Value::Generator(a), Value::Generator(b))
        | (Value::Macro(a), Value::Macro(b))
        | (Value::Loop(a), Value::Loop(b))
        | (Value::Cycler(a), Value::Cycler(b))
        | (Value::Joiner(a), Value::Joiner(b)) => a == b,
        _ => false,
    })
}

/// Python's `<`, `==` or `>`; `None` if a NaN has no order.
pub fn order(a: &Value, b: &Value, meter: &mut Meter<'_>) -> Result<Option<Ordering>> {
    if let (Some(a), Some(b)) = (a.number(), b.number()) {
        return Ok(a.order(b));
    }
    match (a, b) {
        (Value::Undefined(missing), _) | (_, Value::Undefined(missing)) => {
            evaluation(missing.sentence())
        }
        (Value::Text(a), Value::Text(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            meter.look_at(a.len().min(b.len()))?;
            Ok(Some(a.cmp(b)))
        }
        (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.items.iter().zip(&b.items) {
                meter.step()?;
                if !equal(a, b, meter)? {
                    return order(a, b, meter);
                }
            }
            Ok(Some(a.items.len().cmp(&b.items.len())))
        }
        _ => {
            let (a, b) = (a.type_name(), b.type_name());
            evaluation(format!("{a} and {b} have no order"))
        }
    }
}
