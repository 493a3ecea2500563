"""log_prob and sample agree, and probabilities are probabilities."""

import pytest
import torch
from torch.distributions import Normal

from linear_transformers.distributions import Categorical, LogisticMixture
from linear_transformers.distributions.base import LEAST_TEMPERATURE


def all_log_probs(distribution, parameters):
    values = torch.arange(distribution.num_values).expand(*parameters.shape[:-1], -1)
    repeated = parameters.unsqueeze(-2).expand(*values.shape, -1)
    return distribution.log_prob(repeated, values)


@pytest.fixture(params=[(LogisticMixture, 2), (LogisticMixture, 17), (LogisticMixture, 256),
                        (LogisticMixture, 1000), (Categorical, 17)],
                ids=lambda p: f"{p[0].__name__}-{p[1]}")  # fmt: skip
def distribution(request):
    family, num_values = request.param
    return family(num_values)


@pytest.mark.parametrize("spread", [0.1, 1.0, 30.0])
def test_the_probabilities_of_all_values_sum_to_one(distribution, spread):
    parameters = spread * torch.randn(50, distribution.num_parameters, dtype=torch.float64)
    totals = all_log_probs(distribution, parameters).exp().sum(-1)
    torch.testing.assert_close(totals, torch.ones_like(totals))


def test_log_prob_of_one_logistic_is_the_difference_of_its_cdf():
    distribution = LogisticMixture(256, num_components=1)
    mean, log_scale = 0.1, -2.0
    parameters = torch.tensor([[0.0, mean, log_scale]], dtype=torch.float64)
    x = 2 * 140 / 255 - 1

    def cdf(y):
        return torch.sigmoid((torch.tensor(y, dtype=torch.float64) - mean) / torch.e**log_scale)

    expected = (cdf(x + 1 / 255) - cdf(x - 1 / 255)).log()
    ours = distribution.log_prob(parameters, torch.tensor([140]))[0]
    torch.testing.assert_close(ours, expected)


def test_far_tails_keep_value_and_gradient_in_float32():
    """PixelCNN++ falls back to an approximation here; the identity used needs none."""
    distribution = LogisticMixture(256, num_components=1)
    parameters = torch.tensor([[0.0, -1.0, -7.0]], requires_grad=True)
    log_prob = distribution.log_prob(parameters, torch.tensor([254]))
    (gradient,) = torch.autograd.grad(log_prob.sum(), parameters)
    exact = distribution.log_prob(parameters.double(), torch.tensor([254]))
    torch.testing.assert_close(log_prob.double(), exact, rtol=1e-5, atol=0)
    assert log_prob < -1000
    assert gradient.isfinite().all()
    assert gradient[0, 1] > 0


@pytest.mark.parametrize("log_scale", [90.0, 105.0, 1e30])
def test_a_scale_beyond_measure_leaves_finite_gradients(log_scale):
    distribution = LogisticMixture(256, num_components=2)
    given = torch.tensor([[0.0, 0.0, 0.0, 0.0, log_scale, -1.0]], requires_grad=True)
    log_prob = distribution.log_prob(given, torch.tensor([100]))
    (gradient,) = torch.autograd.grad(log_prob.sum(), given)
    assert log_prob.isfinite().all()
    assert gradient.isfinite().all()


def test_gradients_of_log_prob_are_right(distribution):
    parameters = torch.randn(3, distribution.num_parameters, dtype=torch.float64)
    values = torch.tensor([0, 1, distribution.num_values - 1])
    assert torch.autograd.gradcheck(
        lambda p: distribution.log_prob(p, values), parameters.requires_grad_()
    )


def test_half_precision_parameters_are_widened(distribution):
    parameters = torch.randn(5, distribution.num_parameters).bfloat16()
    values = torch.zeros(5, dtype=torch.long)
    log_prob = distribution.log_prob(parameters, values)
    assert log_prob.dtype == torch.float32
    torch.testing.assert_close(log_prob, distribution.log_prob(parameters.float(), values))


@pytest.mark.parametrize("family", [LogisticMixture, Categorical])
@pytest.mark.parametrize("num_values", [2, 17])
def test_samples_follow_the_probabilities(family, num_values):
    distribution = family(num_values)
    parameters = torch.randn(distribution.num_parameters, dtype=torch.float64)
    count = 200_000
    noise = torch.rand(count, distribution.noise_dim, dtype=torch.float64)
    samples = distribution.sample(parameters.expand(count, -1), noise)
    expected = all_log_probs(distribution, parameters[None]).exp()[0] * count
    found = torch.bincount(samples, minlength=distribution.num_values).double()
    chi_square = ((found - expected) ** 2 / expected.clamp(min=1e-9))[expected > 5].sum()
    freedom = int((expected > 5).sum()) - 1
    # Wilson-Hilferty: chi-square to a standard normal; 4 sigma is one failure in 30,000.
    z = ((chi_square / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    assert Normal(0, 1).cdf(z) < 0.99997


@pytest.mark.parametrize("temperature", [1e-9, LEAST_TEMPERATURE])
def test_a_low_temperature_takes_the_mode(distribution, temperature):
    parameters = torch.randn(20, distribution.num_parameters, dtype=torch.float64)
    parameters[:, 0] += 10  # one component, or value, dominates
    noise = torch.rand(20, distribution.noise_dim, dtype=torch.float64)
    samples = distribution.sample(parameters, noise, temperature=temperature)
    mode = torch.zeros(20, dtype=torch.long)
    if isinstance(distribution, LogisticMixture):
        top = distribution.num_values - 1
        mean = parameters[:, distribution.num_parameters // 3]
        mode = ((mean + 1) / 2 * top).round().clamp(0, top).long()
    assert torch.equal(samples, mode)


@pytest.mark.parametrize("extreme", [0.0, 1 - 2**-24])
def test_extreme_noise_stays_in_range(distribution, extreme):
    parameters = 20 * torch.randn(50, distribution.num_parameters)
    samples = distribution.sample(parameters, torch.full((50, distribution.noise_dim), extreme))
    assert samples.min() >= 0
    assert samples.max() < distribution.num_values


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-40, float("nan")])
def test_a_temperature_not_above_zero_is_refused(distribution, temperature, raises_one_line):
    parameters = torch.randn(1, distribution.num_parameters)
    with raises_one_line(f"temperature={temperature}", "above 0"):
        distribution.sample(
            parameters, torch.rand(1, distribution.noise_dim), temperature=temperature
        )


def test_a_mixture_of_nothing_is_refused(raises_one_line):
    with raises_one_line("num_components=0", "at least 1"):
        LogisticMixture(17, num_components=0)
    with raises_one_line("min_log_scale=-100", "at least -60"):  # its gradients would be NaN
        LogisticMixture(17, min_log_scale=-100.0)


def drawn_shares(parameters, **options):
    """How often each value comes when the noise goes through [0, 1) evenly."""
    distribution = Categorical(parameters.shape[-1])
    noise = (torch.arange(10_000, dtype=torch.float64) / 10_000).unsqueeze(-1)
    samples = distribution.sample(parameters.expand(len(noise), -1), noise, **options)
    return torch.bincount(samples, minlength=parameters.shape[-1]) / len(noise)


PROBABILITIES = torch.tensor([0.05, 0.4, 0.1, 0.3, 0.15], dtype=torch.float64)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.41}, [1, 3]),
        ({"top_p": 0.84}, [1, 3, 4]),
        ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 2, "top_p": 0.6}, [1, 3]),  # of two, 4/7 and 3/7: one does not reach 0.6
        ({"top_k": 2, "top_p": 0.5}, [1]),
    ],
)
def test_truncation_keeps_the_most_likely_values_in_proportion(options, kept):
    expected = torch.zeros_like(PROBABILITIES)
    expected[kept] = PROBABILITIES[kept] / PROBABILITIES[kept].sum()
    shares = drawn_shares(PROBABILITIES.log(), **options)
    torch.testing.assert_close(shares.double(), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("noise", [0.0, 1 - 2**-24])
def test_a_struck_out_value_never_comes(noise):
    """Not even for noise above a last sum that rounding has left below 1."""
    logits = torch.randn(500, 256)
    noise = torch.full((500, 1), noise)
    samples = Categorical(256).sample(logits, noise, top_k=7)
    least = logits.topk(7).values[:, -1]
    assert (logits.gather(1, samples[:, None])[:, 0] >= least).all()


@pytest.mark.parametrize("options", [{"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_truncation_out_of_range_is_refused(options, raises_one_line):
    ((name, value),) = options.items()
    with raises_one_line(f"{name}={value}", "must be"):
        Categorical(5).sample(torch.randn(1, 5), torch.rand(1, 1), **options)


def test_parameters_and_noise_of_others_are_refused(distribution, raises_one_line):
    """A mixture would take a wider vector for more components."""
    width = distribution.num_parameters
    parameters, noise = torch.zeros(4, width), torch.zeros(4, distribution.noise_dim)
    for wrong in (width - 1, width + 3):
        with raises_one_line(f"{wrong} parameters of a value were given", f"takes {width}"):
            distribution.sample(torch.zeros(4, wrong), noise)
        with raises_one_line(f"{wrong} parameters of a value were given"):
            distribution.log_prob(torch.zeros(4, wrong), torch.zeros(4, dtype=torch.long))
    with raises_one_line(f"Noise [4, {distribution.noise_dim + 1}] was given"):
        distribution.sample(parameters, torch.zeros(4, distribution.noise_dim + 1))
