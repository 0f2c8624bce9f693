//! Weighted least squares over a few columns whose coefficients may not be negative, by trying every set of columns that
//! are held at 0: exact, and cheap for the three or four columns that a form of step times has.

/// One equation: the multiples of the coefficients whose sum should be `value`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<const N: usize> {
    pub columns: [f64; N],
    pub value: f64,
    pub weight: f64,
}

/// The coefficients of the smallest error, those of columns outside `free` being 0. Where several sets of columns do equally
/// well, as when rows are fewer than columns, the one with fewest columns is taken.
pub fn nonnegative_least_squares<const N: usize>(rows: &[Row<N>], free: [bool; N]) -> [f64; N] {
    let mut sets: Vec<usize> = (0..1_usize << N)
        .filter(|bits| (0..N).all(|column| free[column] || bits >> column & 1 == 0))
        .collect();
    sets.sort_by_key(|bits| bits.count_ones());
    // More columns must earn their place against rounding.
    let rounding = 1e-14 * squares(rows, &[0.0; N]);
    let (mut best, mut least) = ([0.0; N], f64::INFINITY);
    for bits in sets {
        let Some(found) = solve(rows, bits) else { continue };
        let error = squares(rows, &found);
        if found.iter().all(|coefficient| *coefficient >= 0.0) && error < least - rounding {
            (best, least) = (found, error);
        }
    }
    best
}

fn squares<const N: usize>(rows: &[Row<N>], coefficients: &[f64; N]) -> f64 {
    let error = |row: &Row<N>| row.value - dot(&row.columns, coefficients);
    rows.iter().map(|row| row.weight * error(row).powi(2)).sum()
}

fn dot<const N: usize>(columns: &[f64; N], coefficients: &[f64; N]) -> f64 {
    columns.iter().zip(coefficients).map(|(column, coefficient)| column * coefficient).sum()
}

/// The normal equations of the columns in `bits`, scaled to 1 on their diagonal; `None` when these columns do not
/// determine their coefficients.
fn solve<const N: usize>(rows: &[Row<N>], bits: usize) -> Option<[f64; N]> {
    const PIVOT_MIN: f64 = 1e-10;
    let used: Vec<usize> = (0..N).filter(|column| bits >> column & 1 == 1).collect();
    let sum = |term: &dyn Fn(&Row<N>) -> f64| rows.iter().map(|row| row.weight * term(row)).sum::<f64>();
    let scale: Vec<f64> = used.iter().map(|&c| sum(&|row| row.columns[c].powi(2)).sqrt()).collect();
    if scale.iter().any(|scale| !scale.is_normal()) {
        return None;
    }
    let size = used.len();
    let mut matrix = vec![vec![0.0; size + 1]; size];
    for (i, equation) in matrix.iter_mut().enumerate() {
        for (j, entry) in equation.iter_mut().take(size).enumerate() {
            *entry = sum(&|row| row.columns[used[i]] * row.columns[used[j]]) / (scale[i] * scale[j]);
        }
        equation[size] = sum(&|row| row.columns[used[i]] * row.value) / scale[i];
    }
    // The matrix is positive definite when the columns differ: no pivoting is needed, and a small pivot means they do not.
    for i in 0..size {
        if matrix[i][i] < PIVOT_MIN {
            return None;
        }
        let (above, below) = matrix.split_at_mut(i + 1);
        let pivot = &above[i];
        for equation in below {
            let factor = equation[i] / pivot[i];
            for (entry, above) in equation.iter_mut().zip(pivot).skip(i) {
                *entry -= factor * above;
            }
        }
    }
    let mut found = [0.0; N];
    for i in (0..size).rev() {
        let known: f64 = (i + 1..size).map(|j| matrix[i][j] * found[used[j]] * scale[j]).sum();
        found[used[i]] = (matrix[i][size] - known) / matrix[i][i] / scale[i];
    }
    found.iter().all(|coefficient| coefficient.is_finite()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{WeightedPoint, fit_line};

    #[test]
    fn lines_are_those_of_the_line_fit() {
        let seed = 17;
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let points: Vec<WeightedPoint> = (0..random.usize(2..6))
                .map(|place| WeightedPoint {
                    x: place as f64 + random.f64(),
                    y: 4.0 * random.f64() - 1.0,
                    weight: 0.1 + random.f64(),
                })
                .collect();
            let rows: Vec<Row<2>> =
                points.iter().map(|p| Row { columns: [1.0, p.x], value: p.y, weight: p.weight }).collect();
            let line = fit_line(&points).unwrap();
            let [floor, slope] = nonnegative_least_squares(&rows, [true; 2]);
            assert!(
                (floor - line.floor).abs() + (slope - line.slope).abs() < 1e-6,
                "seed {seed}: {points:?}"
            );
        }
    }

    #[test]
    fn what_rows_leave_open_is_held_at_zero() {
        let row = |columns, value| Row { columns, value, weight: 1.0 };
        let rows = [row([1.0, 1.0, 2.0], 3.0), row([1.0, 2.0, 4.0], 5.0)];
        assert_eq!(nonnegative_least_squares(&rows, [false, true, false])[0], 0.0);
        let [floor, slope, shape] = nonnegative_least_squares(&rows, [true; 3]);
        assert!((floor - 1.0).abs() < 1e-9 && (slope + 2.0 * shape - 2.0).abs() < 1e-9);
        assert!(slope == 0.0 || shape == 0.0);
        assert_eq!(nonnegative_least_squares::<3>(&[], [true; 3]), [0.0; 3]);
        assert_eq!(nonnegative_least_squares(&[row([1.0, 1.0, 1.0], -1.0)], [true; 3]), [0.0; 3]);
    }
}
