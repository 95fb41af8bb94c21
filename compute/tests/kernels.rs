//! The checks of [`llamabi_compute::backend::cpu::selftest`] as tests, on every tier that this
//! processor has.

use llamabi_compute::backend::cpu::detect::Tier;
use llamabi_compute::backend::cpu::selftest::{CHECKS, Check, run};
use llamabi_compute::for_each_check;

fn check(tier: &str, name: &str) {
    match Tier::named(tier) {
        Ok(tier) => CHECKS.iter().find(|check| check.0 == name).unwrap().1(tier),
        Err(e) => println!("skipped: {e}"),
    }
}

macro_rules! on {
    ($tier:ident: $($check:ident)*) => {
        mod $tier {
            $(
                #[test]
                fn $check() {
                    super::check(stringify!($tier), stringify!($check));
                }
            )*
        }
    };
}

for_each_check!(on portable);
for_each_check!(on avx2);
for_each_check!(on avx2vnni);
for_each_check!(on avx512);
for_each_check!(on avx512bf16);
for_each_check!(on amx);

#[test]
fn a_check_that_fails_is_told_with_its_reason() {
    fn fails(tier: Tier) {
        assert_eq!(tier.name(), "a tier", "names");
    }
    let tier = Tier::named("portable").unwrap();
    let mut told = Vec::new();
    let checks: [(&str, Check); 2] = [("passes", |_| ()), ("fails", fails)];
    run(&checks, tier, &mut |name, why| {
        told.push((name.to_owned(), why.map(str::to_owned)))
    });
    assert_eq!(told[0], ("passes".to_owned(), None));
    let why = told[1].1.as_ref().unwrap();
    assert!(
        told[1].0 == "fails" && why.contains("names") && why.contains("portable"),
        "{why}"
    );
}
