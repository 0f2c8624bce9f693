//! Least squares with costs that cannot be negative, for systems of a few columns: which multiples of N unknown costs add up
//! to 1 in every row. Used by the two fits of this crate; knows nothing of what the columns mean.

/// A row of the system: the multiples of the costs whose sum is 1 when the model is right.
pub type Row<const N: usize> = [f64; N];

/// The model's time over the measured one, less 1.
pub fn error<const N: usize>(row: &Row<N>, costs: &[f64; N]) -> f64 {
    row.iter().zip(costs).map(|(factor, cost)| factor * cost).sum::<f64>() - 1.0
}

/// Of all ways to hold some costs at 0, the one with the smallest error whose other costs are not negative.
pub fn not_negative<const N: usize>(rows: &[Row<N>]) -> Option<[f64; N]> {
    let ways = (1..1_u32 << N).map(|bits| std::array::from_fn(|column| bits >> column & 1 != 0));
    let solutions =
        ways.filter_map(|free| solve(rows, free)).filter(|costs| costs.iter().all(|cost| *cost >= 0.0));
    let squares = |costs: &[f64; N]| rows.iter().map(|row| error(row, costs).powi(2)).sum::<f64>();
    solutions.min_by(|one, other| squares(one).total_cmp(&squares(other)))
}

/// Least squares over the free columns, the others held at 0; `None` when the rows do not determine them.
pub fn solve<const N: usize>(rows: &[Row<N>], free: [bool; N]) -> Option<[f64; N]> {
    let scale: [f64; N] =
        std::array::from_fn(|column| rows.iter().map(|row| row[column].powi(2)).sum::<f64>().sqrt());
    let mut matrix = [[0.0_f64; N]; N];
    let mut right = [0.0_f64; N];
    for line in 0..N {
        if !free[line] {
            matrix[line][line] = 1.0;
            continue;
        }
        if scale[line] == 0.0 {
            return None;
        }
        for column in (0..N).filter(|&column| free[column]) {
            matrix[line][column] =
                rows.iter().map(|row| row[line] / scale[line] * (row[column] / scale[column])).sum();
        }
        right[line] = rows.iter().map(|row| row[line] / scale[line]).sum();
    }
    let solution = eliminate(matrix, right)?;
    Some(std::array::from_fn(|column| if free[column] { solution[column] / scale[column] } else { 0.0 }))
}

/// Gauss with pivots. Columns have unit length, so that a pivot this small means columns that point the same way.
fn eliminate<const N: usize>(mut matrix: [[f64; N]; N], mut right: [f64; N]) -> Option<[f64; N]> {
    const PIVOT_MIN: f64 = 1e-9;
    for column in 0..N {
        let pivot = (column..N)
            .max_by(|&one, &other| matrix[one][column].abs().total_cmp(&matrix[other][column].abs()))?;
        if matrix[pivot][column].abs() < PIVOT_MIN {
            return None;
        }
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        for line in (0..N).filter(|&line| line != column) {
            let factor = matrix[line][column] / matrix[column][column];
            for at in column..N {
                matrix[line][at] -= factor * matrix[column][at];
            }
            right[line] -= factor * right[column];
        }
    }
    Some(std::array::from_fn(|line| right[line] / matrix[line][line]))
}
