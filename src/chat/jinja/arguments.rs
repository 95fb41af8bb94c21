//! Arguments of filters, tests, methods and functions, by position and by name.

use super::fault::{Result, evaluation};
use super::limits::Meter;
use super::repr;
use super::text::Text;
use super::value::{Number, Value};

/// The arguments that a call was given.
#[derive(Debug, Default)]
pub struct Arguments {
    /// By position.
    pub positional: Vec<Value>,
    /// By name.
    pub keyword: Vec<(Text, Value)>,
}

impl Arguments {
    /// The values of the parameters `names`, in their order; `None` if a parameter is not given.
    /// `what` is the function's name for error messages.
    pub fn bind<const N: usize>(self, what: &str, names: [&str; N]) -> Result<[Option<Value>; N]> {
        let given = self.positional.len();
        if given > N {
            return evaluation(format!("`{what}` takes at most {N} arguments, not {given}"));
        }
        let mut values = [const { None }; N];
        for (place, value) in values.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.keyword {
            let name = name.as_str();
            match names.iter().position(|other| *other == name) {
                Some(i) if values[i].is_none() => values[i] = Some(value),
                Some(_) => return evaluation(format!("`{what}` is given `{name}` twice")),
                None => return evaluation(format!("`{what}` has no argument `{name}`")),
            }
        }
        Ok(values)
    }

    /// Fails if there are any arguments.
    pub fn none(self, what: &str) -> Result<()> {
        self.bind::<0>(what, []).map(drop)
    }
}

/// The value of a required argument.
pub fn required(value: Option<Value>, what: &str, name: &str) -> Result<Value> {
    match value {
        Some(value) => Ok(value),
        None => evaluation(format!("`{what}` needs the argument `{name}`")),
    }
}

/// A text.
pub fn text(value: &Value, what: &str) -> Result<Text> {
    match value {
        Value::Text(text) => Ok(text.clone()),
        Value::Undefined(missing) => evaluation(missing.sentence()),
        other => evaluation(format!("{what} is {}, must be a str", other.of_type())),
    }
}

/// A text, or Python's `str` of another value, as in jinja2's `soft_str`.
pub fn soft_text(meter: &mut Meter<'_>, value: &Value) -> Result<Text> {
    repr::string(meter, value)
}

/// An integer.
pub fn integer(value: &Value, what: &str) -> Result<i128> {
    match value.index() {
        Some(index) => Ok(index),
        None => evaluation(format!("{what} is {}, must be an int", value.of_type())),
    }
}

/// An integer or a default.
pub fn integer_or(value: Option<Value>, what: &str, default: i128) -> Result<i128> {
    match value {
        Some(value) => integer(&value, what),
        None => Ok(default),
    }
}

/// A truth value or false.
pub fn flag(value: Option<Value>) -> bool {
    value.is_some_and(|value| value.truth())
}

/// Treats None like a missing argument.
pub fn given(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !matches!(value, Value::None))
}

/// A number.
pub fn number(value: &Value, what: &str) -> Result<Number> {
    match value.number() {
        Some(number) => Ok(number),
        None => evaluation(format!("{what} is {}, must be a number", value.of_type())),
    }
}

/// A count: not below zero, and not above what memory can hold.
pub fn count(n: i128) -> usize {
    usize::try_from(n.max(0)).unwrap_or(usize::MAX)
}
