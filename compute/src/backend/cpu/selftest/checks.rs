//! All checks, by name.

pub use super::adapters::adapters_match;
pub use super::attention::{
    generated_rows_attend, generated_rows_of_bad_numbers, prompt_rows_attend,
    prompt_rows_of_bad_numbers, shared_pages_change_nothing,
};
pub use super::medusa::{
    guesses_of_long_texts_are_loaded, hidden_rows_match, residual_blocks_match,
};
pub use super::numbers::{
    every_half_number_survives, exp_is_within_two_ulp, narrowing_rounds_to_nearest_even,
    silu_is_right_at_both_ends, transposing_moves_every_lane, weights_are_decoded_as_they_are,
    weights_in_bfloat16_are_right, weights_of_a_softmax_are_right,
};
pub use super::parts::{gate_and_up_of_two_formats, parts_keep_their_own_formats};
pub use super::products::{
    norms_match, packing_places_every_number, products_match, products_of_bad_numbers,
};
pub use super::quantised::{
    quantised_company_changes_nothing, quantised_forward_matches,
    quantised_products_of_bad_numbers, quantised_strips_hold_what_the_format_says,
};
pub use super::quantised_products::quantised_products_match;
pub use super::sizes::{
    a_cpu_says_what_it_is, avx2_and_avx512_agree_in_every_bit, bytes_said_are_bytes_taken,
    sizes_that_no_machine_has_are_errors,
};
pub use super::steps::{
    company_threads_and_chunks_change_nothing, forward_matches, int8_cache_matches,
    long_sequences_match, rows_without_slot_and_copied_pages, wanted_rows_only,
    wide_prompts_do_not_depend_on_their_chunks,
};
pub use super::unusual_scores::prompt_rows_of_unusual_scores;
