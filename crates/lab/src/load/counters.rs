//! What a server says of its own steps: the counters of its `/metrics` page, in the Prometheus text format, as far as they
//! count passes of the model.

/// Counters of passes, by the servers that have them. Passes of prefill are in them too.
const PASS_COUNTERS: [&str; 4] = [
    "overshot_step_seconds_count",
    // vLLM: a histogram of tokens per engine iteration.
    "vllm:iteration_tokens_total_count",
    "vllm_iteration_tokens_total_count",
    // llama.cpp's server.
    "llamacpp:n_decode_total",
];

/// Passes so far, over all label sets; `None` when the page counts none.
pub fn passes(page: &str) -> Option<f64> {
    PASS_COUNTERS.iter().find_map(|name| {
        let mut samples = page.lines().filter_map(|line| sample(line, name)).peekable();
        samples.peek()?;
        Some(samples.sum())
    })
}

/// The value of a line `name{labels} value [timestamp]`.
fn sample(line: &str, name: &str) -> Option<f64> {
    let rest = line.strip_prefix(name)?;
    let values = match rest.strip_prefix('{') {
        Some(labelled) => labelled.rsplit_once('}')?.1,
        None => rest.starts_with(' ').then_some(rest)?,
    };
    let value: f64 = values.split_whitespace().next()?.parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_summed_over_labels() {
        let page = "# HELP vllm:iteration_tokens_total Histogram.\n\
                    vllm:iteration_tokens_total_count{engine=\"0\",model_name=\"a}b\"} 40.0\n\
                    vllm:iteration_tokens_total_count{engine=\"1\"} 2.0 1700000000\n\
                    vllm:iteration_tokens_total_sum{engine=\"0\"} 9.0\n";
        assert_eq!(passes(page), Some(42.0));
        assert_eq!(passes("llamacpp:n_decode_total 7\n"), Some(7.0));
        assert_eq!(passes("overshot_step_seconds_count_more 7\nllamacpp:n_decode_total NaN\n"), None);
        assert_eq!(passes(""), None);
    }
}
