// Page's CUSUM test, with which estimates notice slow ranks and changes of speed. Pure functions;
// only portable arithmetic. Let scores z have deviation 1 and mean 0 before a change, and mean 2k
// after it:
//
//   S <- max(0, S + min(max(z, -c), c) - k),   alarm at S >= h
//
// The test is the quickest for its rate of false alarms (Page 1954; optimal by Moustakides 1986).
// Scores are clipped at c = kMaxScore, so a single outlier adds at most c - k, about h / 4. An
// alarm therefore needs four slow rounds or more, whatever their size. Clipping makes alarms rarer
// than the stated rate for normal scores, and bounds the effect of heavy tails.
#pragma once

#include <algorithm>

namespace cox {

inline constexpr double kMaxScore = 2.7;

constexpr double cusum_step(double sum, double score, double k) {
  return std::max(0.0, sum + std::min(std::max(score, -kMaxScore), kMaxScore) - k);
}

// Returns h for a stated rate of false alarms per step, by Siegmund's approximation of the average
// run length (Siegmund, Sequential Analysis, 1985, with its correction 1.166 for the overshoot):
//
//   1 / rate = (exp(2k b) - 1 - 2k b) / (2 k^2),   b = h + 1.166
//
// REQUIRES: 0 < k <= 3, 0 < rate < 1.
double cusum_threshold(double k, double rate);

// Returns log10 of the average number of steps after which normal noise makes S reach `sum`.
double cusum_rarity(double sum, double k);

// A test for a shift of at least `shift` under noise of deviation `sigma`, in the same unit. A
// scale is cheap to make; a threshold is not.
struct CusumScale {
  double sigma = 1;  // deviation of one score, floored so that k <= kMaxAllowance
  double k = 0.5;    // shift / (2 sigma), at least kMinAllowance
};
struct CusumTest : CusumScale {
  double h = 1;
};

// Limits of k. Below the lower one, the smallest shift found grows to half the noise. Above the
// upper one, the noise counts as larger than it is, so that a shift much smaller than `shift` is
// not named.
inline constexpr double kMinAllowance = 0.25;
inline constexpr double kMaxAllowance = 1.0;

CusumScale make_cusum_scale(double shift, double sigma);
CusumTest make_cusum_test(double shift, double sigma, double rate);

}  // namespace cox
