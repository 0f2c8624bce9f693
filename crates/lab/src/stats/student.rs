//! Student's t, for the few blocks that a measurement can afford: probabilities through the regularised incomplete
//! beta function (its continued fraction, Lentz's method), quantiles by bisection.

/// Two-sided probability of `|t|` or more with `freedom` degrees of freedom (at least 1).
pub fn t_two_sided_p(t: f64, freedom: f64) -> f64 {
    let x = freedom / (freedom + t * t);
    if x >= 1.0 { 1.0 } else { regularised_beta(freedom / 2.0, 0.5, x) }
}

/// The t that `alpha` (two-sided) of the distribution lies beyond.
pub fn t_quantile(alpha: f64, freedom: f64) -> f64 {
    // With one degree of freedom and an alpha of 0.0005, t is 1,273: the widest that is asked for here.
    let (mut low, mut high) = (0.0, 1e5);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if t_two_sided_p(middle, freedom) > alpha { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

fn regularised_beta(a: f64, b: f64, x: f64) -> f64 {
    let log_front = ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (-x).ln_1p();
    // The fraction converges fast on this side of the mean, and the function is symmetric.
    if x < (a + 1.0) / (a + b + 2.0) {
        log_front.exp() * beta_fraction(a, b, x) / a
    } else {
        1.0 - log_front.exp() * beta_fraction(b, a, 1.0 - x) / b
    }
}

fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-30;
    let away_from_zero = |value: f64| if value.abs() > TINY { value } else { TINY };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for m in 1..200 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            fraction *= d * c;
        }
        if (d * c - 1.0).abs() < 1e-14 {
            break;
        }
    }
    fraction
}

/// Lanczos' approximation, good to about 1e-14 for positive arguments.
fn ln_gamma(x: f64) -> f64 {
    const G: f64 = 7.0;
    const COEFFICIENTS: [f64; 9] = [
        0.999_999_999_999_809_9,
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    if x < 0.5 {
        let pi = std::f64::consts::PI;
        return (pi / (pi * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let terms = COEFFICIENTS.iter().enumerate().skip(1);
    let sum = COEFFICIENTS[0] + terms.map(|(index, c)| c / (x + index as f64)).sum::<f64>();
    let t = x + G + 0.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// t, degrees of freedom, probability: from the model script that this crate's statistics follow.
    const ORACLE: [(f64, f64, f64); 8] = [
        (0.5, 1.0, 0.704832764699),
        (2.0, 3.0, 0.139325968559),
        (3.182446, 3.0, 0.0500000117192),
        (1.0, 7.0, 0.35061666282),
        (4.3, 7.0, 0.00356660168776),
        (2.2, 11.0, 0.0500861109811),
        (12.0, 11.0, 1.16328405026e-07),
        (1.96, 200.0, 0.051384840843),
    ];

    #[test]
    fn probabilities_are_those_of_the_oracle() {
        for (t, freedom, p) in ORACLE {
            assert!(
                (t_two_sided_p(t, freedom) - p).abs() < 1e-9,
                "t {t}, {freedom}: {}",
                t_two_sided_p(t, freedom)
            );
        }
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, t) in [(1.0, 12.706_205), (3.0, 3.182_446), (9.0, 2.262_157), (1e6, 1.959_966)] {
            assert!((t_quantile(0.05, freedom) - t).abs() < 1e-5, "{freedom}: {}", t_quantile(0.05, freedom));
        }
        assert!((t_two_sided_p(t_quantile(0.0005, 1.0), 1.0) - 0.0005).abs() < 1e-9);
    }
}
