from tests.test_exits import *
import sys
@pytest.mark.parametrize("lr",[0.02,0.05,0.1,0.3,1.0])
def test_x(lr, train_config, prepared, tmp_path):
    config = with_exits(train_config(epochs=12, lr=lr, schedule="plateau", plateau_patience=1, stop_patience=4, per="sample"))
    whole = run(config, prepared, tmp_path / "whole")
    print(lr, [(round(r["lr"],3), round(r["validation/arbitrary/objective"],2)) for r in whole])
