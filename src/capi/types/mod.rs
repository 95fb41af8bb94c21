//! The constants and structs of the header. Fields are only ever appended, and numbers are never
//! reused. A line `// Section: ...` names the heading of the header under which the items below it
//! stand.

mod compressing;
mod figures;
mod generating;
mod models;
mod ranks;
mod results;
mod status;
mod texts;

pub use compressing::*;
pub use figures::*;
pub use generating::*;
pub use models::*;
pub use ranks::*;
pub use results::*;
pub use status::*;
pub use texts::*;
