import warnings


def test_plot_dist_accepts_the_export(make):
    with warnings.catch_warnings():
        # Warnings of arviz-plots and matplotlib about each other are not ours.
        warnings.simplefilter("ignore")
        import arviz_plots
        from matplotlib import pyplot as plt

        collection = arviz_plots.plot_dist(make().to_arviz(200), backend="matplotlib")
        plt.close("all")
    assert {"mu", "s", "twice"} <= set(collection.viz["plot"].data_vars)
