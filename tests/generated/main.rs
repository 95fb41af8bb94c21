//! Files of the repository that are made from others are as these make them.

mod docs;
mod dtypes;
mod header;
mod made;
mod numbers;
mod requests;
mod sections;
mod since;
mod structs;
mod third_party;
